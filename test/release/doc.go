// Package release tests the files that scripts/release.sh makes. They must be complete, and a second build of
// the same source must have the same bytes.
package release
