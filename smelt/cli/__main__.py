"""python -m smelt.cli: the same as the command smelt."""

from __future__ import annotations

import sys

from smelt.cli.main import main

sys.exit(main())
