#!/usr/bin/env bash
# Builds the documentation as a site in dist/site, with MkDocs, from docs/ and mkdocs.yml. It fails if a link has
# no target, or if a page is missing in the navigation. It needs the network only to install MkDocs. To view the
# site: python3 -m http.server --directory dist/site
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/install-tools.sh docs
export NO_MKDOCS_2_WARNING=1 PYTHONDONTWRITEBYTECODE=1
.tools/bin/mkdocs build --strict
echo "dist/site/index.html"
