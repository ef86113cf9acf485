#!/usr/bin/env bash
# Copyright The sandflow Authors.
# SPDX-License-Identifier: Apache-2.0
#
# Becomes systemd, as process 1 of a machine whose files are copies on write of this one's.
# Package machine runs it in a laboratory:
#
#   boot.sh DIR CGROUP       join the cgroup, and make namespaces; then, as process 1 of them,
#   boot.sh DIR              make the root file system in DIR and start systemd in it
#
# DIR keeps the disk of the machine from one boot to the next.
set -euo pipefail

dir=$1

if [ $# -gt 1 ]; then
	cgroup=$2
	while read -r _ _ _ _ at _; do
		mkdir -p "$at$cgroup"
		if [ "$at" = /sys/fs/cgroup ]; then # cgroup v2 alone: hand all controllers down
			for controller in $(<"$at/cgroup.controllers"); do
				echo "+$controller" >"$at/cgroup.subtree_control"
				echo "+$controller" >"$at$(dirname "$cgroup")/cgroup.subtree_control"
			done
		fi
		for file in cpuset.cpus cpuset.mems; do # on cgroup v1 a new group has none
			if [ -e "$at$cgroup/$file" ] && [ -e "$at/cgroup.clone_children" ]; then
				parent=$(dirname "$cgroup")
				cat "$at/$file" >"$at$parent/$file"
				cat "$at/$file" >"$at$cgroup/$file"
			fi
		done
		echo $$ >"$at$cgroup/cgroup.procs"
	done < <(grep ' - cgroup2\? ' /proc/self/mountinfo)
	exec unshare --mount --net --pid --fork --kill-child --uts --ipc --cgroup "$0" "$dir"
fi

disk=$dir/disk
root=$dir/root
mount --make-rprivate /
ip link set lo up

# What the machine is made of: the system of this one, and an empty /var with its packages.
first_boot() {
	local top
	for top in usr etc opt root; do
		mkdir -p "$disk/upper/$top" "$disk/work/$top"
	done
	mkdir -p "$disk"/var/{cache,lib,log,tmp}
	chmod 1777 "$disk/var/tmp"
	ln -s /run "$disk/var/run"
	ln -s /run/lock "$disk/var/lock"
	cp -a /var/lib/dpkg "$disk/var/lib/dpkg"
	mkdir -p "$disk/upper/etc/dpkg/dpkg.cfg.d"
	echo force-unsafe-io >"$disk/upper/etc/dpkg/dpkg.cfg.d/unsafe-io" # nobody needs this disk after a crash
}
[ -d "$disk" ] || first=yes
[ -z "${first:-}" ] || first_boot

mkdir -p "$root"
mount -t tmpfs -o mode=755 tmpfs "$root"
cd "$root"
mkdir -p usr etc opt root proc sys dev run tmp var old
for link in /bin /sbin /lib /lib32 /lib64 /libx32; do
	[ ! -L "$link" ] || cp -a "$link" .
done
for top in usr etc opt root; do
	mount -t overlay -o "lowerdir=/$top,upperdir=$disk/upper/$top,workdir=$disk/work/$top" overlay "$top"
done
mount --bind "$disk/var" var

# Nothing but the machine's own services: none that this one has enabled or generates.
if [ -n "${first:-}" ]; then
	rm -rf etc/systemd/system/*.wants etc/systemd/system/*.requires usr/lib/systemd/system-generators
	: >etc/fstab
	tr -d - </proc/sys/kernel/random/uuid >etc/machine-id
	echo machine >etc/hostname
fi

# /proc and /sys may be read; of the kernel's settings only those of the network, which is
# the machine's own, may be written.
mount -t proc proc proc
mount --bind proc/sys proc/sys
mount --bind proc/sys/net proc/sys/net
mount -o remount,bind,ro proc/sys
mount -t sysfs sysfs sys
cgroups() {
	local fs options at
	if [ "$(stat -fc %T /sys/fs/cgroup)" = cgroup2fs ]; then
		mount -t cgroup2 cgroup2 sys/fs/cgroup
		return
	fi
	mount -t tmpfs -o mode=755 tmpfs sys/fs/cgroup
	while read -r at fs options; do
		mkdir "sys/fs/cgroup/$(basename "$at")"
		mount -t "$fs" -o "$options" cgroup "sys/fs/cgroup/$(basename "$at")"
	done < <(awk '{
		for (i = 7; $i != "-"; i++);
		if ($(i + 1) ~ /^cgroup/) print $5, $(i + 1), $(i + 3)
	}' /proc/self/mountinfo)
}
cgroups
mount -o remount,bind,ro sys

mount -t tmpfs -o mode=755 tmpfs dev
mkdir dev/pts dev/shm
mount -t devpts -o newinstance,ptmxmode=666,mode=620 devpts dev/pts
ln -s pts/ptmx dev/ptmx
for device in null zero full random urandom tty fuse net; do
	[ ! -e "/dev/$device" ] || cp -a "/dev/$device" dev/
done
ln -s /proc/self/fd dev/fd
mount -t tmpfs -o mode=755 tmpfs run
mount -t tmpfs -o mode=1777 tmpfs tmp

pivot_root . old
umount -l /old
rmdir /old
mount --make-rshared /
exec env -i container=laboratory PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin \
	/lib/systemd/systemd --system --unit=multi-user.target
