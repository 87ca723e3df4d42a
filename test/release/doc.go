// Package release tests the files that scripts/release.sh makes: they are complete, and a second build of the same source
// has the same bytes.
package release
