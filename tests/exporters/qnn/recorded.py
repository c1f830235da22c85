"""Lines that QAIRT 2.51 wrote while it refused graphs, as they came, colours and blank lines removed.

Of each failure, these are the lines that say something, in their order; the last is ONNX Runtime's exception.
"""

from __future__ import annotations

_QNN = "[V:onnxruntime:Default, qnn_backend_manager.cc:519 QnnLogging]"
_ORT = "onnxruntime.capi.onnxruntime_pybind11_state"

NOISE = (
    f"2026-11-29 22:10:08.543247519 {_QNN}  <E> unexpected GraphHtpSettings option 66",
    f"2026-11-29 22:10:08.674227826 {_QNN} options.cc:150:Option: seq_tiledist_debug_visualize_op_graph_prune = 0",
    f"2026-11-29 22:11:08.296952610 {_QNN} tiling.h:280:WARNING:Tried to assign requirement of chunk=-1 to dim=3, but "
    "412100000010 (q::Concat) does not have a valid splitting rule. Defaulting to original dim size (4096).",
    "2026-11-29 22:11:23.045568869 [V:onnxruntime:, qnn_execution_provider.cc:1713 LogNodeSupport] Validation PASSED "
    "for 3 nodes in OrtNodeUnit (Sigmoid) :",
    "\tOperator type: Sigmoid Node name: Sigmoid_n_213 Node index: 70",
)
"""Lines of graphs that compiled."""

MEMORY_ERROR = (
    f"{_ORT}.EPFail: [ONNXRuntimeError] : 11 : EP_FAIL : Failed to finalize QNN graph. Error: "
    "QNN_COMMON_ERROR_MEM_ALLOC: Memory allocation related error., Code: 1002"
)
"""The same for every failure of the kinds that follow."""

_SKIPPED = (
    f"2026-11-29 22:10:14.372738510 {_QNN}  <E> graphMainFinalizePostPrepare: prepare failed (err=1002), skipping"
)

TILING = (
    f"2026-11-29 22:10:14.371045663 {_QNN} tcm_migration.cc:2394::ERROR:Operator named q::*InputSlicePad "
    "(0x494000000010) not sufficiently tiled to fit in TCM. Requires 153354240 bytes",
    f"2026-11-29 22:10:14.371307611 {_QNN} tcm_migration.cc:1817::ERROR:Inside TCMMigration::run() function: "
    "scan_input_graph() call failed",
    f"2026-11-29 22:10:14.371574299 {_QNN} graph_prepare.cc:2837::ERROR:Graph prepare failed during optimization with "
    "err: 17, Fatal Optimize",
    f'2026-11-29 22:10:14.372706380 {_QNN}  <E> "Mul_n_6" generated: Operator named q::*InputSlicePad (0x494000000010) '
    "not sufficiently tiled to fit in TCM. Requires 153354240 bytes",
    f"2026-11-29 22:10:14.372714255 {_QNN}  <E> RouterX86 graph prepare failed 17",
    _SKIPPED,
)

GRAPH_LIMIT = (
    f"2026-11-29 22:11:23.412801205 {_QNN} fa_alloc.cc:2738::ERROR:graph requires estimated allocation of 3932168 KB, "
    "limit is 3670016 KB",
    f"2026-11-29 22:11:23.412858171 {_QNN} graph_prepare.cc:935::ERROR:error during serialize: memory usage too large",
    _SKIPPED,
)

POOL = (
    f"2026-11-29 22:11:08.980281823 {_QNN} fa_alloc.cc:2362::ERROR:DDR-tensor memory pool is too big: 4534567424 bytes",
    f"2026-11-29 22:11:08.980420482 {_QNN}  <E> RouterX86 graph prepare failed -1",
    _SKIPPED,
)

SPILL = (
    f"2026-11-29 22:11:22.062972318 {_QNN} graph_prepare.cc:332::ERROR:Exception during graph prepare. "
    "Spill Fill >= 4GB",
    f"2026-11-29 22:11:22.063030687 {_QNN}  <E> RouterX86 graph prepare failed 99",
    _SKIPPED,
)

FALLBACK_ERROR = (
    f"{_ORT}.Fail: [ONNXRuntimeError] : 1 : FAIL : This session contains graph nodes that are assigned to the default "
    "CPU EP, but fallback to CPU EP has been explicitly disabled by the user."
)

RANK = (
    f"2026-11-29 22:09:38.256888769 {_QNN}  <E> [4294967295] has incorrect Rank 5.",
    f"2026-11-29 22:09:38.257144556 {_QNN}  <E> QnnBackend_validateOpConfig failed 3110",
    f"2026-11-29 22:09:38.257168020 {_QNN}  <E> Failed to validate op Sqrt_n_6 with error 0xc26",
    "2026-11-29 22:09:38.257195571 [W:onnxruntime:, qnn_model_wrapper.cc:565 CreateQnnNode] "
    "QNN.backendValidateOpConfig() failed for node `Sqrt_n_6` of type `ElementWiseSquareRoot` with error code 3110",
    "\tREASON : Failed to add node.",
)

NO_SUCH_OPERATOR = (
    "\tREASON : Operators of type `Erf` are not supported by QNN EP.Erf node `Erf_n_6` will not be assigned to QNN EP.",
)

LEFT = (
    "2026-11-29 22:18:59.085399442 [E:onnxruntime:, qnn_execution_provider.cc:2453 GetCapabilityImpl] Unsupported "
    "nodes in QNN EP: { name: Det_n_6, type: Det }",
)

BAD_DEVICE = (
    f"2026-11-29 22:12:50.270401393 {_QNN}  <E> Unknown config socModel 0",
    f"2026-11-29 22:12:50.270416271 {_QNN}  <E> Failed to parse custom config: 14001",
)

FALLBACK = {"RANK": RANK, "NO_SUCH_OPERATOR": NO_SUCH_OPERATOR, "LEFT": LEFT, "BAD_DEVICE": BAD_DEVICE}
