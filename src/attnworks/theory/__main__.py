"""Write all claims to standard output: as a table, or with --data as the JSON that web/formulas.mjs reads."""

import json
import sys

if sys.argv[1:] == ["--data"]:
    from attnworks.theory.report import page_claims

    json.dump(page_claims(), sys.stdout, allow_nan=False)
else:
    from attnworks.theory.report import markdown

    sys.stdout.write(markdown())
