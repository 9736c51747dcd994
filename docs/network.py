"""Whether other sites can be reached, which `make linkcheck` needs: one sentence, and 1 as exit code, if not."""

import sys
import urllib.error
import urllib.request

try:
    urllib.request.urlopen("https://arxiv.org", timeout=20)
except urllib.error.HTTPError:
    pass  # it answers
except OSError:
    sys.exit(
        "make linkcheck follows the links to other sites, but there is no network here: run it where there is one."
    )
