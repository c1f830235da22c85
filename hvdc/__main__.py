"""``python -m hvdc``."""

from hvdc.cli.main import main

main()
