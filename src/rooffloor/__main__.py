"""`python -m rooffloor`."""

import sys

from rooffloor.validate.cli.main import main

sys.exit(main())
