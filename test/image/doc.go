// Package image tests the Dockerfile: it builds the image with buildah, and runs it with podman under the restrictions of
// a cluster: read-only, without capabilities, in 64 MiB.
package image
