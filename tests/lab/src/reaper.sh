# Ends one run of the lab: its processes, its namespaces, its directory.
#
#   reaper.sh <run> <directory> [now]
#
# Without "now" it first reads its input to the end. The lab's process holds the other end of that
# pipe, so the end comes whichever way that process ends, SIGKILL included.
# Every step may find its work done by another reaper of the same run.
run=$1
directory=$2
trap '' HUP INT TERM
[ "${3:-}" = now ] || cat >/dev/null

living() {
    for namespace in /run/netns/"$run"-*; do
        [ -e "$namespace" ] && ip netns pids "${namespace##*/}"
    done
    # What a process was started with also marks those it started, in the root namespace too.
    grep -lzxF "HARVESTER_LAB_RUN=$run" /proc/[0-9]*/environ | cut -d/ -f3
}

rounds=0
while [ "$rounds" -lt 250 ]; do
    doomed=$(living 2>/dev/null | sort -u)
    [ -n "$doomed" ] || break
    # Unquoted: one argument for each process.
    kill -KILL $doomed 2>/dev/null
    rounds=$((rounds + 1))
    sleep 0.01
done

# The ports first: their other ends, inside the hosts, go with them at once, whereas a namespace
# only ends some time after its name.
[ ! -e "/run/netns/$run-switch" ] || ip -netns "$run-switch" link del group 7 2>/dev/null
for namespace in /run/netns/"$run"-*; do
    [ ! -e "$namespace" ] || ip netns del "${namespace##*/}" 2>/dev/null
done
rm -rf "$directory"
