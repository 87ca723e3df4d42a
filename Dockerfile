# The image of rlsidecar: one static program, certificates, licences, and the names of its user and group.
# docs/packaging.md describes how to run it. To take the base images from another registry, set GO_IMAGE
# and RUNTIME_IMAGE with --build-arg.
ARG GO_IMAGE=golang:1.26.8@sha256:0f063af2d465d8dcae54cce04278ada488b96f77b42449c8d071e47d016cc65a
ARG RUNTIME_IMAGE=scratch

FROM --platform=$BUILDPLATFORM ${GO_IMAGE} AS build
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY . .
# The builder sets TARGETARCH. Without it, the program is for the architecture of the machine that builds it.
ARG TARGETARCH
# The version and the commit, because the build context has no Git history.
ARG VERSION=(unknown)
ARG REVISION=(unknown)
# /bin/ratelimit is the program's path in envoyproxy/ratelimit's image. Started by this name, rlsidecar
# behaves as that server.
RUN mkdir -p /out/bin /out/etc/ssl/certs /out/usr/share/licenses/rlsidecar && \
    GOARCH=${TARGETARCH} VERSION=${VERSION} REVISION=${REVISION} scripts/build.sh /out/bin/rlsidecar && \
    ln -s rlsidecar /out/bin/ratelimit && \
    cp LICENSE /out/usr/share/licenses/rlsidecar/ && \
    go run ./scripts/bom /out/bin/rlsidecar /tmp/sbom.json /out/usr/share/licenses/rlsidecar/THIRD_PARTY_LICENSES.txt && \
    cp /etc/ssl/certs/ca-certificates.crt /out/etc/ssl/certs/ && \
    echo 'rlsidecar:x:65534:65534::/:' > /out/etc/passwd && \
    echo 'rlsidecar:x:65534:' > /out/etc/group

FROM ${RUNTIME_IMAGE}
ARG VERSION=(unknown)
ARG REVISION=(unknown)
LABEL org.opencontainers.image.title="rlsidecar" \
      org.opencontainers.image.description="A rate limiter that proxies call before every request" \
      org.opencontainers.image.source="https://github.com/rlsidecar/rlsidecar" \
      org.opencontainers.image.documentation="https://github.com/rlsidecar/rlsidecar/blob/main/docs/packaging.md" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
COPY --from=build /out/bin/ /bin/
COPY --from=build /out/etc/ /etc/
COPY --from=build /out/usr/ /usr/
USER 65534:65534
# gRPC and HTTP. The admin port (6070) is on loopback, unless RLSIDECAR_ADMIN_TOKEN is set.
EXPOSE 8081 8080
HEALTHCHECK --interval=10s --timeout=3s --start-period=10s CMD ["/bin/ratelimit", "healthcheck"]
# No ENTRYPOINT, as in envoyproxy/ratelimit's image: Compose files contain "command: /bin/ratelimit".
CMD ["/bin/ratelimit"]
