"""What runs on a device ends with the process here that started it, also where that was killed.

adb's own client goes on when nobody reads what it says, and so does what it runs. But the input that we hold open for
it ends with us, and that end arrives on the device.
"""

from __future__ import annotations

LEASH = """exec 7<&0
( exec <&7 7<&- >/dev/null 2>&1 8>&-; read -r end; kill -TERM $$ ) &
exec 7<&-
"""
"""Lines of a shell: when its standard input ends, so does the shell, or what it has become by ``exec``. Nothing is
written to that input. The watcher holds nothing else, such as a lock's descriptor 8 or the outputs: of what is
redirected by ``exec`` alone, a shell keeps no copy.
"""
