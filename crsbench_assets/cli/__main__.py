"""``python -m crsbench_assets.cli`` is the command ``crsbench``."""

from crsbench_assets.cli import main

main()
