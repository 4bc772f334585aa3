"""Write the table of all claims to standard output."""

import sys

from attnworks.claims.table import markdown

sys.stdout.write(markdown())
