#!/bin/bash
# mount, umount, df and findmnt as xfstests needs them: placed before the real ones on PATH under these names.
#
# The suite works with devices, `covey:test` and `covey:scratch`. Here these are volumes in the folder
# $VOLUMES, formatted at their first mount by the program $COVEY. The suite expects the plain type `fuse` for
# FUSE filesystems.
name=${0##*/}
bin=${0%/*}

# The program that this one hides.
real() {
    local program=$1 folder
    shift
    IFS=: read -ra folders <<<"$PATH"
    for folder in "${folders[@]}"; do
        [ "$folder" != "$bin" ] && [ -x "$folder/$program" ] && exec "$folder/$program" "$@"
    done
    exit 127
}

mount_volume() {
    local options=rw words=()
    while [ $# -gt 0 ]; do
        case $1 in
            -t) shift ;;
            -o) options+=,$2 && shift ;;
            -o*) options+=,${1#-o} ;;
            *) words+=("$1") ;;
        esac
        shift
    done
    local volume=$VOLUMES/${words[0]#covey:}
    [ -d "$volume" ] || "$COVEY" format "$volume" >/dev/null || exit 32
    "$COVEY" mount -d -o "$options" "$volume" "${words[1]}" >/dev/null || exit 32
    exit 0
}

case " $name  $* " in
    *remount*) ;;
    *" mount "*" -t fuse.covey "*) mount_volume "$@" ;;
esac
words=()
for word; do
    case $word in
        covey:*) words+=("$VOLUMES/${word#covey:}") ;;
        *) words+=("$word") ;;
    esac
done
case $name in
    umount)
        # A volume is a folder, and umount takes a folder for a mountpoint: pass its mountpoint instead.
        for at in "${!words[@]}"; do
            target=$(awk -v volume="${words[$at]}" '$1 == volume { print $2 }' /proc/mounts | tail -n 1)
            [ -z "$target" ] || words[$at]=$target
        done
        # umount(8) returns before the daemon has closed the volume, and the suite mounts again at once. So
        # the last of a volume's mounts (there may be bind mounts) is removed by covey, which waits.
        last=${words[-1]%/}
        source=$(awk -v at="$last" '$2 == at && $3 == "fuse.covey" { print $1 }' /proc/mounts | tail -n 1)
        if [ -n "$source" ] && [ "$(grep -c "^$source " /proc/mounts)" = 1 ] && [[ "${words[*]}" != *-l* ]]; then
            said=$("$COVEY" umount --wait 20 "$last" 2>&1) && exit 0
            # A container that was started meanwhile has a copy of the mount. Here the mount is gone, but its
            # daemon keeps running.
            daemon=$(sed -n 's/.*process \([0-9]*\) still writes.*/\1/p' <<<"$said")
            [ -n "$daemon" ] && kill -9 "$daemon" && exit 0
            echo "$said" >&2
            exit 32
        fi
        real umount "${words[@]}"
        ;;
    # No mount helper of this type: the kernel remounts by itself.
    mount) [[ "$*" != *remount* ]] || real mount -i "${words[@]}" ;;
esac
if [ "$name" = df ] && [[ "$*" != */* ]]; then
    # The suite asks for all filesystems, one of which may be dead and never answer. Only this suite's are
    # needed.
    mapfile -t ours < <(awk -v volumes="$VOLUMES/" 'index($1, volumes) == 1 { print $2 }' /proc/mounts)
    [ ${#ours[@]} -gt 0 ] || exit 0
    words+=("${ours[@]}")
fi
set -o pipefail
(real "$name" "${words[@]}") | sed -e "s#^$VOLUMES/#covey:#" -e "s#\([ \"]\)$VOLUMES/#\1covey:#g" -e 's#fuse\.covey#fuse#'
