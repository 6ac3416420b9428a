# The image of weft: flanneld, the CNI shim, the standard CNI plugins, nft and both flavours of iptables.
# The binaries come from `make build`; the base is an argument, so that one made of Debian's packages serves as well.
ARG BASE=debian:bookworm-slim
FROM ${BASE}

# nft writes our tables; iptables (-nft and -legacy) is called only on hosts whose own FORWARD chain drops pod traffic.
RUN apt-get update -qq \
 && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends nftables iptables \
 && rm -rf /var/lib/apt/lists/* /var/cache/apt/* /var/cache/debconf/* /var/log/* /usr/share/doc/* /usr/share/man/* \
 && mkdir -p /opt/bin /opt/weft/cni \
 && ln -s flanneld /opt/bin/install-conf \
 && ln -s /flannel /opt/weft/cni/flannel
# ^ install-conf is the name under which flannel's own manifest asks for a copied CNI config: flanneld answers to it.
#   /flannel is where that manifest expects the shim.

ARG BIN=bin
COPY ${BIN}/flanneld /opt/bin/flanneld
COPY ${BIN}/flannel /flannel
COPY ${BIN}/cni/ /opt/weft/cni/

ARG VERSION=dev
ARG COMMIT=unknown
LABEL org.opencontainers.image.title="weft" \
      org.opencontainers.image.description="VXLAN overlay network for Kubernetes, a drop-in for flannel" \
      org.opencontainers.image.source="https://github.com/weft-cni/weft" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${COMMIT}"

# `kubectl exec ... -- flanneld policy trace` finds it.
ENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/opt/bin
ENTRYPOINT ["/opt/bin/flanneld"]
