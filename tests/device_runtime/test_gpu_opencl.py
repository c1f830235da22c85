"""OpenCL's interface as the engine declares and uses it: against Khronos' headers, and with a library that records."""

from __future__ import annotations

import shutil
import struct
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from device_runtime.build import INCLUDE, SOURCE
from tests.device_runtime.gpu import Gpu, Refused

HERE = Path(__file__).resolve().parent
API = SOURCE / "gpu" / "src"
KERNELS = SOURCE / "gpu" / "kernels"
STRICT = ["-std=c11", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Werror", "-I", str(API)]

QCOM = {"dmabuf": 0x411D, "ion": 0x40A8, "ahb": 0x4119}
"""Allocation types of cl_qcom_ext_host_ptr."""
IOCOHERENT, UNCACHED, WRITEBACK = 0x40A9, 0x40A4, 0x40A5
READ_WRITE, READ_ONLY, USE_HOST_PTR, EXT_HOST_PTR = 1, 4, 8, 1 << 29
EXTENSIONS = (
    "cl_khr_external_memory_dma_buf cl_qcom_dmabuf_host_ptr cl_qcom_ion_host_ptr "
    "cl_qcom_android_ahardwarebuffer_host_ptr cl_arm_import_memory_dma_buf"
)
PAGE = 4096


def compiled(source: Path, output: Path, *more: str) -> Path:
    """A C file, compiled and linked."""
    if shutil.which("cc") is None:
        pytest.skip("there is no C compiler: apt-get install gcc")
    done = subprocess.run(
        ["cc", *STRICT, *more, str(source), "-o", str(output)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return output


def test_declarations_are_those_of_khronos(tmp_path: Path) -> None:
    command = ["cc", "-E", "-x", "c", "-", "-o", "/dev/null"]
    including = "#include <CL/cl_ext.h>\n"
    if subprocess.run(command, input=including, text=True, capture_output=True, check=False).returncode != 0:
        pytest.skip("Khronos' headers are not installed: apt-get install opencl-c-headers")
    source, more = HERE / "opencl_facts.c", "-DHVDC_OPENCL_SYSTEM_HEADERS"
    ours, theirs = compiled(source, tmp_path / "ours"), compiled(source, tmp_path / "theirs", more)
    facts = [subprocess.run([p], capture_output=True, text=True, check=True).stdout for p in (ours, theirs)]
    assert facts[0] == facts[1]
    assert len(facts[0].splitlines()) > 40


@pytest.fixture(scope="module")
def stand_in(tmp_path_factory: pytest.TempPathFactory) -> Path:
    library = tmp_path_factory.mktemp("stand-in") / "libOpenCL.so"
    return compiled(HERE / "opencl_stand_in.c", library, "-shared", "-fPIC")


Asking = Callable[..., tuple[str, list[list[str]]]]


@pytest.fixture
def importing(programs: dict[str, Path], stand_in: Path, tmp_path: Path) -> Asking:
    """``importing(shares, option=…)``: which way is chosen, and the stand-in's log."""

    def ask(shares: str, extensions: str = EXTENSIONS, **options: object) -> tuple[str, list[list[str]]]:
        log = tmp_path / "log"
        log.write_text("")
        environment = {"STAND_IN_SHARES": shares, "STAND_IN_EXTENSIONS": extensions, "STAND_IN_LOG": str(log)}
        with Gpu(programs["hvdc_gpu_check"], tmp_path, environment, library=stand_in, **options) as gpu:
            answer = gpu.ask("import")
        return answer, [line.split(" ") for line in log.read_text().splitlines()]

    return ask


def only(log: list[list[str]], kind: str) -> list[tuple[int, int, bytes]]:
    """Flags, bytes and the struct or properties of the imports of a kind."""
    return [(int(flags), int(size), bytes.fromhex(data)) for name, flags, size, data in log if name == kind]


@pytest.mark.parametrize("kind", ["dmabuf", "ion"])
def test_a_descriptor_goes_into_qualcomms_struct(kind: str, importing: Asking) -> None:
    """{allocation type, cache policy, descriptor, padding, mapping}: cl_ext_qcom.h."""
    answer, log = importing(kind, probe=1)
    assert answer == f"qcom-{kind} {IOCOHERENT}"
    flags, size, data = only(log, kind)[0]
    assert flags == READ_WRITE | USE_HOST_PTR | EXT_HOST_PTR
    assert size == PAGE
    allocation, policy, descriptor, mapping = struct.unpack("<IIi4xQ", data)
    assert (allocation, policy) == (QCOM[kind], IOCOHERENT)
    assert descriptor > 2
    assert mapping % PAGE == 0
    assert mapping > 0


def test_an_android_hardware_buffer_goes_into_qualcomms_struct(importing: Asking) -> None:
    """{allocation type, cache policy, AHardwareBuffer}; without one, that way is not tried."""
    answer, log = importing("ahb", probe=1, hardware_buffer=1)
    assert answer == f"qcom-ahb {IOCOHERENT}"
    flags, size, data = only(log, "ahb")[0]
    assert (flags, size) == (READ_WRITE | USE_HOST_PTR | EXT_HOST_PTR, PAGE)
    allocation, policy, buffer = struct.unpack("<IIQ", data)
    assert (allocation, policy) == (QCOM["ahb"], IOCOHERENT)
    assert buffer > 0
    assert not only(importing("ahb", probe=1)[1], "ahb")


@pytest.mark.parametrize("policy", [IOCOHERENT, UNCACHED, WRITEBACK])
def test_cache_policies_are_tried_until_one_is_coherent(policy: int, importing: Asking) -> None:
    answer, log = importing(f"dmabuf:{policy}", probe=1)
    assert answer == f"qcom-dmabuf {policy}"
    tried = [struct.unpack_from("<II", data)[1] for _, _, data in only(log, "dmabuf")]
    assert tried == [IOCOHERENT, UNCACHED, WRITEBACK][: len(tried)]
    assert tried[-1] == policy


def test_khronos_import_by_properties_with_acquire_and_release(importing: Asking) -> None:
    answer, log = importing("khr", probe=1)
    assert answer == "khr-dma-buf 0"
    flags, size, data = only(log, "khr")[0]
    assert (flags, size) == (READ_WRITE, PAGE)
    handle, descriptor, end = struct.unpack("<QQQ", data)
    assert (handle, end) == (0x2067, 0)
    assert descriptor > 2
    order = [name for name, *_ in log if name in ("acquire", "release")]
    assert order == ["acquire", "release"] * 3, "the device owns memory only while the host does not touch it"


def test_arms_import(importing: Asking) -> None:
    answer, log = importing("arm", probe=1)
    assert answer == "arm-dma-buf 0"
    flags, size, data = only(log, "arm")[0]
    assert (flags, size, struct.unpack("<QQQ", data)) == (READ_WRITE, PAGE, (0x40B2, 0x40B4, 0))


def test_ways_are_tried_in_order_and_one_that_copies_is_passed_over(importing: Asking) -> None:
    """Every extension is there; only the last way shares memory."""
    answer, log = importing("host", probe=1, hardware_buffer=1)
    assert answer == "host-pointer 0"
    names = [name for name, *_ in log if name not in ("acquire", "release")]
    assert names == ["khr", *["dmabuf"] * 3, *["ion"] * 3, *["ahb"] * 3, "arm", "host"]


def test_where_nothing_shares_weights_are_copied(importing: Asking) -> None:
    assert importing("", probe=1)[0] == "copy 0"


def test_extensions_that_are_not_listed_are_not_called(importing: Asking) -> None:
    """Also one whose name is the start of a listed one's."""
    answer, log = importing("host", "cl_khr_external_memory_dma_buf2 xcl_qcom_ion_host_ptr", probe=1)
    assert answer == "host-pointer 0"
    assert {name for name, *_ in log} == {"host"}


def test_descriptors_are_not_tried_without_an_object_to_try_them_on(importing: Asking) -> None:
    answer, log = importing("host")
    assert answer == "host-pointer 0"
    assert {name for name, *_ in log} == {"host"}


def test_a_way_that_was_asked_for_and_does_not_share_is_refused(importing: Asking) -> None:
    with pytest.raises(Refused, match="does not share memory as qcom-ion: what is written on one side"):
        importing("host", probe=1, **{"import": "qcom-ion"})


@pytest.mark.parametrize(
    ("environment", "options", "sentence"),
    [
        ({"STAND_IN_PLATFORMS": "0"}, {}, r"OpenCL has no platform .* install one .* or run on the NPU alone"),
        (
            {"STAND_IN_DEVICES": "0"},
            {},
            r"no device that fits \(platform any, device any\) among the 0 of 1 platforms",
        ),
        ({}, {"device": "Adreno"}, r"no device that fits \(platform any, device Adreno\) among the 1 of 1 platforms"),
        ({}, {"platform": "3"}, r"no device that fits \(platform 3, device any\)"),
        ({}, {"library": "libm.so.6"}, r"libm.so.6 has no function clGet.*older than OpenCL 1.2, or another library"),
        ({}, {"library": "no.so"}, r"OpenCL cannot be loaded \(no.so\): .* install a driver with its loader"),
    ],
    ids=["no platform", "no device", "no such device", "no such platform", "another library", "no library"],
)
def test_what_is_missing_is_said(
    environment: dict[str, str], options: dict[str, str], sentence: str, programs: dict[str, Path], stand_in: Path,
    tmp_path: Path,
) -> None:  # fmt: skip
    with Gpu(programs["hvdc_gpu_check"], tmp_path, environment, **{"library": stand_in, **options}) as gpu:
        for question in ("import", "device 128"):
            with pytest.raises(Refused, match=sentence):
                gpu.ask(*question.split())


@pytest.mark.parametrize(("kind", "way"), [("khr", "khr-dma-buf"), ("dmabuf", "qcom-dmabuf"), ("arm", "arm-dma-buf")])
def test_data_files_are_imported_whole_and_read_only(
    kind: str, way: str, tiny_artifact: Path, programs: dict[str, Path], stand_in: Path, tmp_path: Path
) -> None:
    """Each by its own descriptor; what the device reads of them is compared with what this process reads."""
    log = tmp_path / "log"
    environment = {"STAND_IN_SHARES": kind, "STAND_IN_EXTENSIONS": EXTENSIONS, "STAND_IN_LOG": str(log)}
    options = {"library": stand_in, "probe": 1, "shared": 1, "import": way}
    with Gpu(programs["hvdc_gpu_check"], tmp_path, environment, **options) as gpu:
        windows, total = map(int, gpu.ask("weights", tiny_artifact).split())
    files = [p for folder in ("regions", "adapters") for p in sorted((tiny_artifact / folder).iterdir())]
    imports = only([line.split(" ") for line in log.read_text().splitlines()], kind)[1:]  # the first is the probe's
    assert [size for _, size, _ in imports] == [p.stat().st_size for p in files]
    assert (windows, total) == (len(files), sum(p.stat().st_size for p in files))
    assert {flags & 0xFF for flags, _, _ in imports} == {READ_ONLY | (USE_HOST_PTR if kind == "dmabuf" else 0)}
    if kind != "arm":  # whose descriptor is behind a pointer
        descriptors = [struct.unpack_from("<8xi" if kind == "dmabuf" else "<8xQ", data)[0] for _, _, data in imports]
        assert len(set(descriptors)) == len(files)


def test_a_file_without_what_a_way_needs_is_refused(
    tiny_artifact: Path, programs: dict[str, Path], stand_in: Path, tmp_path: Path
) -> None:
    environment = {"STAND_IN_SHARES": "dmabuf", "STAND_IN_EXTENSIONS": EXTENSIONS}
    sentence = "memory is shared as qcom-dmabuf, and data file 0 comes without what that needs"
    gpu = Gpu(programs["hvdc_gpu_check"], tmp_path, environment, library=stand_in, probe=1)
    with gpu, pytest.raises(Refused, match=sentence):
        gpu.ask("weights", tiny_artifact)


def test_a_driver_that_reads_other_bytes_is_refused(
    tiny_artifact: Path, programs: dict[str, Path], stand_in: Path, tmp_path: Path
) -> None:
    environment = {"STAND_IN_SHARES": "host", "STAND_IN_WRONG": "1"}
    sentence = r"Stand-in reads other bytes of data file 0 .*\(shared as host-pointer\)"
    gpu = Gpu(programs["hvdc_gpu_check"], tmp_path, environment, library=stand_in)
    with gpu, pytest.raises(Refused, match=sentence):
        gpu.ask("weights", tiny_artifact)


LANGUAGES = ["CL1.2", "CL3.0"]
FORMS = {
    "plain": "-DDOT_FORM=4",
    "khr": "-DDOT_FORM=1",
    "qcom": "-DDOT_FORM=2",
    "nvidia": "-DDOT_FORM=3 -D__NV_CL_C_VERSION=120",
}


@pytest.mark.parametrize("language", LANGUAGES)
def test_kernels_are_opencl_c_of_old_and_new_drivers(language: str) -> None:
    """Compiled only, by clang's front end: every dot form as its driver gets it, every width of a vector."""
    if shutil.which("clang") is None:
        pytest.skip("clang is not installed: apt-get install clang")
    command = ["clang", "-x", "cl", f"-cl-std={language}", "--target=spir64", "-Xclang", "-finclude-default-header"]
    common = (INCLUDE / "hvdc" / "tiles.h").read_text() + (KERNELS / "common.cl").read_text()
    gemm = common + "".join((KERNELS / name).read_text() for name in ("dot.cl", "gemm.cl"))
    rows = common + (KERNELS / "rows.cl").read_text()
    cases = [(rows, f"-DVECTOR={v} -DLANES={lanes}") for v in (4, 16) for lanes in (1, 64)]
    for name, form in FORMS.items():
        if name == "khr" and language == "CL1.2":
            continue  # its functions are declared in the newer language alone
        declared = "int qcom_udot8_acc(uint, uint, int);\n" if name == "qcom" else ""
        shapes = ("-DVECTOR=1 -DPARTS=1 -DROWS=8", "-DVECTOR=4 -DPARTS=2 -DROWS=8")
        cases += [(declared + gemm, f"{form} {shape}") for shape in shapes]
    for source, options in cases:
        done = subprocess.run(
            [*command, "-fsyntax-only", *options.split(), "-"],
            input=source,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr


def test_a_device_is_chosen_by_name_or_index(programs: dict[str, Path], stand_in: Path, tmp_path: Path) -> None:
    for choice in ({"device": "and-in"}, {"device": "0"}, {"platform": "Stand"}, {"platform": "0"}):
        with Gpu(programs["hvdc_gpu_check"], tmp_path, {"STAND_IN_SHARES": "host"}, library=stand_in, **choice) as gpu:
            assert gpu.ask("import") == "host-pointer 0"
