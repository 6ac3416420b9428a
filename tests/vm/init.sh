#!/bin/sh
# Process 1 of the machine: mounts what a program expects, runs it, reports its status and switches the machine off.
# The first serial port is the kernel's console, the second the program's output, the third its status.
export PATH=/usr/local/sbin:/usr/sbin:/sbin:/usr/local/bin:/usr/bin:/bin HOME=/root TMPDIR=/tmp
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs devtmpfs /dev
mkdir -p /dev/pts /dev/shm /run /tmp /root /var/lib /var/run
mount -t devpts devpts /dev/pts
mount -t tmpfs tmpfs /dev/shm
mkdir -p /run/netns /run/lock
mount -t cgroup2 cgroup2 /sys/fs/cgroup
ip link set lo up
# The bridge's hooks are there on every node of Kubernetes. The rest would come when it is asked for, but who asks while another
# is having it loaded is told that there is no such thing.
for module in br_netfilter veth vxlan wireguard ipip ip6_tunnel dummy nf_tables nft_ct nft_objref nft_chain_nat nft_nat nft_masq nft_fib_inet nft_reject_inet; do
	modprobe "$module"
done
stty raw -echo -F /dev/ttyS1
/job/run </dev/null >/dev/ttyS1 2>&1
echo "rc=$?" >/dev/ttyS2
sync
poweroff -f
