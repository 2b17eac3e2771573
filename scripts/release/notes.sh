#!/usr/bin/env bash
# Prints the notes of the release: the section of CHANGELOG.md, the images, and how to verify them.
set -euo pipefail
cd "$(dirname "$0")/../.."

version=$(scripts/release/version.sh)
scripts/release/changelog.py notes "$version"
cat <<NOTES

### Images

\`\`\`text
$(cat dist/IMAGES)
\`\`\`

[docs/releasing.md](https://github.com/leadergroup/leadergroup/blob/v$version/docs/releasing.md#verify-a-release) says
how to verify the images, the chart and the files.
NOTES
