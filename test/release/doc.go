// Package release tests what scripts/release.sh publishes: that it is whole, and that anybody who builds
// the same source gets the same bytes.
package release
