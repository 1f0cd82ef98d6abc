#!/usr/bin/busybox sh
# The guest's first process: mounts what Linux programs expect, then runs the agent for ever.
export PATH=/usr/local/bin:/usr/bin:/usr/sbin HOME=/root LANG=C.UTF-8 TERM=linux
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
ln -s /proc/self/fd /dev/fd
ln -s fd/0 /dev/stdin
ln -s fd/1 /dev/stdout
ln -s fd/2 /dev/stderr
mkdir -p /dev/pts /dev/shm
mount -t devpts devpts /dev/pts
mount -t tmpfs shm /dev/shm
mount -t tmpfs tmp /tmp
mount -t tmpfs run /run
hostname potash
echo "potash: Linux $(uname -r) is up"
cd /root
python3 -m potash.vm.agent </dev/null
# Without its agent the machine is deaf: its end is what the host can notice.
echo "potash: the agent has ended"
poweroff -f
