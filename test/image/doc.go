// Package image tests the Dockerfile: it builds the image with buildah and runs it with podman, as
// little trusted as a cluster would: read-only, with no capabilities, in 64 MiB.
package image
