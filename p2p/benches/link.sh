#!/bin/sh
# Measures links between two network namespaces joined by a virtual cable: p2p/benches/link.sh BENCH [ROUNDS]
# BENCH is the program that `cargo bench --workspace --bench link --no-run` names. Needs root, iproute2 and, for packets as long
# as on a cable, ethtool. Segmentation of the sender is off, so that what crosses the cable are packets of 1,500 bytes.
set -eu
bench=$1 rounds=${2:-1000}
a=shoal-a-$$ b=shoal-b-$$ said=$(mktemp)
clean() {
    [ -z "${server:-}" ] || kill "$server" 2>/dev/null || true
    ip netns delete "$a" 2>/dev/null || true
    ip netns delete "$b" 2>/dev/null || true
    rm -f "$said"
}
trap clean EXIT INT TERM
ip netns add "$a"
ip netns add "$b"
ip link add va netns "$a" type veth peer name vb netns "$b"
for end in "$a va 1" "$b vb 2"; do
    set -- $end
    ip -n "$1" addr add "10.77.0.$3/24" dev "$2"
    ip -n "$1" link set "$2" up
    ip -n "$1" link set lo up
    ip netns exec "$1" ethtool -K "$2" tso off gso off tx-udp-segmentation off gro on >/dev/null 2>&1 ||
        echo "no ethtool, or it refuses: packets are longer than on a cable" >&2
done
ip netns exec "$b" "$bench" serve 10.77.0.2 >"$said" &
server=$!
while [ "$(wc -l <"$said")" -lt 4 ]; do
    kill -0 "$server" || exit 1
    sleep 0.1
done
ip netns exec "$a" "$bench" ask "$(sed -n 1p "$said")" "$(sed -n 2p "$said")" "$(sed -n 3p "$said")" "$(sed -n 4p "$said")" "$rounds"
