#!/usr/bin/env bash
# The documentation as a site, in dist/site, made by MkDocs from docs/ (mkdocs.yml). A link that leads
# nowhere, or a page that the navigation lacks, fails it. It needs the network only to install MkDocs.
# To look at it: python3 -m http.server --directory dist/site
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/install-tools.sh docs
export NO_MKDOCS_2_WARNING=1 PYTHONDONTWRITEBYTECODE=1
.tools/bin/mkdocs build --strict
echo "dist/site/index.html"
