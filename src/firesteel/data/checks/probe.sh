# Reads what `firesteel doctor` judges and prints it: `@ NAME CODE`, then each line of text after a `|`.
# Needs sh, grep and sed; no root. Changes nothing; a folder under TMPDIR is removed at the end.
# ROOT: another folder in place of /, where commands/NAME are recorded outputs and bin/ has programs.
# ONLY: names of the sections to read; empty: all.
LC_ALL=C
export LC_ALL
PATH="$PATH:/usr/sbin:/sbin"
ROOT="${ROOT:-}"
ONLY=" ${ONLY:-} "
cd "$ROOT/" || exit 1
USER_NAME=$(id -un 2>/dev/null)
if [ "$USER_NAME" = root ] && [ -n "${SUDO_USER:-}" ]; then # the user whose host it is, not the rights
  USER_NAME=$SUDO_USER
  HOME=$(getent passwd "$SUDO_USER" | cut -d: -f6)
fi
[ -n "$ROOT" ] && [ -r commands/user ] && USER_NAME=$(cat commands/user)
DIR=$(mktemp -d 2>/dev/null) || DIR=
trap '[ -n "$DIR" ] && rm -rf "$DIR"' EXIT
trap 'exit 1' HUP INT TERM
LIMIT=
timeout 1 true >/dev/null 2>&1 && LIMIT="timeout 3.5"
timeout -k 1 1 true >/dev/null 2>&1 && LIMIT="timeout -k 0.5 3.5"

wanted() {
  [ "$ONLY" = "  " ] && return 0
  case "$ONLY" in *" $1 "*) return 0 ;; esac
  return 1
}

show() { # NAME CODE, text on stdin
  printf '@ %s %s\n' "$1" "$2"
  sed 's/^/|/'
}

# file PATH: a whole file, under its path
file() {
  wanted "$1" || return 0
  if [ -n "$ROOT" ] && [ -r "recorded/$1" ]; then
    text=$(cat "recorded/$1")
    code=0
  elif [ -e "$1" ]; then
    text=$(cat "$1" 2>&1)
    code=$?
  else
    text='no such file'
    code=2
  fi
  printf '%s\n' "$text" | head -n "${2:-400}" | tr -d '\000' | show "$1" "$code"
}

# ask NAME PROGRAM CODE: the output of shell code that needs a program; all run at once
ask() {
  wanted "$1" || return 0
  where=$PATH
  if [ -n "$ROOT" ]; then
    if [ -r "$ROOT/commands/$1" ]; then
      code=0
      [ -r "$ROOT/commands/$1.code" ] && code=$(cat "$ROOT/commands/$1.code")
      show "$1" "$code" <"$ROOT/commands/$1"
      return 0
    fi
    where="$ROOT/bin:$PATH"
    if [ ! -x "$ROOT/bin/$2" ]; then
      echo "$2: not found" | show "$1" 127
      return 0
    fi
  elif ! command -v "$2" >/dev/null 2>&1; then
    echo "$2: not found" | show "$1" 127
    return 0
  fi
  if [ -n "$DIR" ]; then
    (
      PATH=$where $LIMIT sh -c "$3" >"$DIR/$1" 2>&1 </dev/null
      echo $? >"$DIR/$1.c"
      mv "$DIR/$1.c" "$DIR/$1.code"
    ) >/dev/null 2>&1 & # without our output: a program that cannot be killed must not hold it open
    ASKED="${ASKED:-} $1"
  else
    text=$(PATH=$where $LIMIT sh -c "$3" 2>&1 </dev/null)
    code=$?
    printf '%s\n' "$text" | show "$1" "$code"
  fi
}

# values NAME PATTERN...: many files of one line each, as PATH:VALUE
values() {
  name=$1
  shift
  wanted "$name" || return 0
  # shellcheck disable=SC2086
  grep -sH '' $* /dev/null | grep -v '0000:0000:0000:0000:0000:0000:0000:0000$' | show "$name" 0
}

# settings NAME PATTERN...: configuration files as PATH:LINE, without comments and secrets
settings() {
  name=$1
  shift
  wanted "$name" || return 0
  # shellcheck disable=SC2086
  grep -sH '^[[:space:]]*[^#;[:space:]]' $* /dev/null | grep -Eiv 'passw|psk|secret|token|private|api.?key' |
    head -n 600 | show "$name" 0
}

echo "@ probe 0"
echo "|1"

HF="${HF_HOME:-$HOME/.cache/huggingface}"
OWN="${FIRESTEEL_HOME:-${XDG_DATA_HOME:-$HOME/.local/share}/firesteel}"
export HF OWN USER_NAME

COLUMNS_GPU='name,driver_version,compute_cap,memory.total,temperature.gpu,power.draw,clocks.sm,clocks.max.sm,utilization.gpu,pstate,clocks_event_reasons.active'
TIMES=5
[ -n "$ROOT" ] || [ "$ONLY" != "  " ] && TIMES=1
export COLUMNS_GPU TIMES
ask gpu nvidia-smi 'i=0; while [ $i -lt $TIMES ]; do nvidia-smi --query-gpu=$COLUMNS_GPU --format=csv,noheader,nounits || exit $?; i=$((i+1)); [ $i -lt $TIMES ] && sleep 0.3; done; exit 0'
ask gpu-processes nvidia-smi 'nvidia-smi --query-compute-apps=pid,process_name,used_memory --format=csv,noheader'
ask user id 'printf "%s\n" "$USER_NAME"'
ask id id 'id "$USER_NAME"'
ask reader id 'id -u'
ask uname uname 'uname -srm'
ask host uname 'uname -n'
ask clock date 'date -u +%s'
ask nproc nproc 'nproc'
ask module-version modinfo 'modinfo -F version nvidia'
ask module-license modinfo 'modinfo -F license nvidia'
ask packages dpkg-query 'dpkg-query -W -f "\${db:Status-Abbrev} \${Package} \${Version}\n" "dgx-*" "nvidia-driver-*" "nvidia-container-toolkit" "docker-ce" "docker.io" "linux-image-*nvidia*" "nvidia-kernel-open-*" 2>/dev/null | grep "^.i" | cut -d" " -f2-'
ask held apt-mark 'apt-mark showhold'
ask updates fwupdmgr 'fwupdmgr get-updates --no-metadata-check --no-unreported-check'
ask units systemctl 'systemctl show -p Id,LoadState,ActiveState,UnitFileState,FragmentPath earlyoom.service systemd-oomd.service nohang.service dgx-anti-oom.service sleep.target suspend.target hibernate.target hybrid-sleep.target gdm.service NetworkManager.service systemd-networkd.service docker.service ufw.service unattended-upgrades.service systemd-timesyncd.service chrony.service'
ask clock-units systemctl 'grep -lsE "nvidia-smi.*(-lgc|--lock-gpu-clocks)" /etc/systemd/system/*.service /usr/lib/systemd/system/*.service /etc/rc.local; exit 0'
ask default-target systemctl 'systemctl get-default'
ask linger loginctl 'loginctl show-user "$USER_NAME" -p Linger'
ask remove-ipc busctl 'busctl get-property org.freedesktop.login1 /org/freedesktop/login1 org.freedesktop.login1.Manager RemoveIPC'
ask idle-suspend gsettings 'gsettings get org.gnome.settings-daemon.plugins.power sleep-inactive-ac-type; gsettings get org.gnome.settings-daemon.plugins.power sleep-inactive-ac-timeout'
ask time timedatectl 'timedatectl show -p NTPSynchronized -p NTP -p Timezone'
ask addresses ip 'ip -o addr show'
ask routes ip 'ip -4 route show table all type unicast'
ask listeners ss 'ss -Hltnp'
ask connections nmcli 'nmcli -t -f NAME,DEVICE,TYPE,FILENAME con show'
ask docker docker 'docker info --format "{{.ServerVersion}}|{{.Driver}}|{{.DockerRootDir}}|{{json .Runtimes}}|{{json .CDISpecDirs}}|{{.CgroupDriver}}"'
ask containers docker 'docker ps --format "{{.Names}}|{{.Image}}|{{.Status}}"'
ask limits sh 'echo "memlock $(ulimit -l)"; echo "nofile $(ulimit -n)"; echo "nofile-hard $(ulimit -Hn)"'
ask ngc sh 'grep -qs nvcr.io "$HOME/.docker/config.json" && echo yes || echo no'
ask processes ps 'ps -eo pid=,ppid=,user:32=,rss=,etimes=,comm='
ask disks df 'for d in "hf $HF" "own $OWN" "docker $(docker info --format "{{.DockerRootDir}}" 2>/dev/null | grep / || echo /var/lib/docker)" "root /"; do n=${d%% *}; p=${d#* }; q=$p; while [ ! -e "$q" ]; do q=$(dirname "$q"); done; printf "%s|%s|%s\n" "$n" "$p" "$(df -PkT "$q" | tail -n 1)"; done'
ask block-devices lsblk 'lsblk -rno NAME,PKNAME,TYPE,ROTA,MODEL'
ask smart nvme 'for d in /dev/nvme?n1; do nvme smart-log "$d" 2>&1 | grep -E "critical_warning|percentage_used|ermission|failed"; done'
ask kernel-log dmesg '{ dmesg 2>/dev/null || journalctl -k -b --no-pager -q -o cat -n 20000; } | grep -E "NVRM: |AER: .*[Ff]atal|mlx5_core.*(health|fatal|insufficient)|nvme.*timeout|oom-kill|Out of memory: Killed|soft lockup|DOE mailbox|cx7-pcie-hotplug" | tail -n 200; dmesg >/dev/null 2>&1 || [ -n "$(journalctl -k -b --no-pager -q -o cat -n 1 2>/dev/null)" ]'
ask last-boot journalctl 'journalctl -b -1 -n 40 --no-pager -q -o cat'
ask cdi-missing sh 'for f in /etc/cdi/nvidia.yaml /var/run/cdi/nvidia.yaml; do [ -r $f ] || continue; echo "file $f"; sed -n "s/.*hostPath: *//p" $f | sort -u | head -n 500 | while read -r p; do [ -e "$p" ] || echo "missing $p"; done; done; exit 0'

for path in proc/meminfo proc/pressure/memory proc/swaps proc/version proc/uptime proc/loadavg \
  proc/driver/nvidia/version etc/os-release etc/dgx-release etc/default/earlyoom etc/docker/daemon.json \
  etc/ufw/ufw.conf var/run/reboot-required var/run/reboot-required.pkgs dev/null; do
  [ "$path" = dev/null ] || file "$path"
done
[ -n "$ROOT" ] && [ ! -r commands/kernel-log ] && [ -r dev/kmsg ] && {
  wanted kernel-log && sed 's/^[0-9]*,[0-9]*,[0-9]*,[^;]*;//' dev/kmsg | show kernel-log 0
}
values net 'sys/class/net/*/mtu' 'sys/class/net/*/operstate' 'sys/class/net/*/carrier' 'sys/class/net/*/speed' \
  'sys/class/net/*/phys_port_name' 'sys/class/net/*/phys_switch_id' 'sys/class/net/*/device/current_link_speed' \
  'sys/class/net/*/device/current_link_width' 'sys/class/net/*/device/max_link_width' 'sys/class/net/*/device/vendor' \
  'sys/class/net/*/wireless/*' 'sys/class/net/*/type'
values rdma 'sys/class/infiniband/*/fw_ver' 'sys/class/infiniband/*/ports/1/state' 'sys/class/infiniband/*/ports/1/rate' \
  'sys/class/infiniband/*/device/net/*/mtu' 'sys/class/infiniband/*/ports/1/gids/*' \
  'sys/class/infiniband/*/ports/1/gid_attrs/types/*' 'sys/class/infiniband/*/ports/1/gid_attrs/ndevs/*' \
  'sys/class/infiniband/*/ports/1/hw_counters/local_ack_timeout_err' \
  'sys/class/infiniband/*/ports/1/hw_counters/out_of_sequence' \
  'sys/class/infiniband/*/ports/1/hw_counters/out_of_buffer'
values cpu 'sys/devices/system/cpu/cpu*/cpufreq/scaling_cur_freq' 'sys/devices/system/cpu/cpu*/cpufreq/cpuinfo_max_freq' \
  'sys/devices/system/cpu/cpu*/cpufreq/scaling_governor' 'sys/devices/system/cpu/cpu0/cpuidle/state*/name' \
  'sys/devices/system/cpu/cpu0/cpuidle/state*/latency' 'sys/devices/system/cpu/cpu0/cpuidle/state*/disable'
values block 'sys/block/*/queue/read_ahead_kb' 'sys/block/*/queue/scheduler' 'sys/block/*/queue/rotational' \
  'sys/block/*/device/model'
values kernel 'proc/sys/vm/swappiness' 'proc/sys/vm/min_free_kbytes' 'proc/sys/vm/nr_hugepages' \
  'sys/kernel/mm/transparent_hugepage/enabled' 'proc/sys/kernel/dmesg_restrict' 'sys/module/nvidia/version'
values dmi 'sys/class/dmi/id/product_name' 'sys/class/dmi/id/product_family' 'sys/class/dmi/id/sys_vendor' \
  'sys/class/dmi/id/bios_version' 'sys/class/dmi/id/bios_date'
values sensors 'sys/class/hwmon/*/name' 'sys/class/hwmon/*/power*_label' 'sys/class/hwmon/*/power*_max' \
  'sys/class/hwmon/*/power*_cap' 'sys/class/hwmon/*/prochot' 'sys/class/thermal/thermal_zone*/type' \
  'sys/class/thermal/thermal_zone*/temp'
settings logind 'etc/systemd/logind.conf' 'usr/lib/systemd/logind.conf.d/*.conf' 'run/systemd/logind.conf.d/*.conf' \
  'etc/systemd/logind.conf.d/*.conf'
settings sysctl 'usr/lib/sysctl.d/*.conf' 'run/sysctl.d/*.conf' 'etc/sysctl.d/*.conf' 'etc/sysctl.conf'
settings limits-files 'etc/security/limits.conf' 'etc/security/limits.d/*.conf'
settings udev 'etc/udev/rules.d/*.rules'
settings network 'etc/netplan/*.yaml' 'run/netplan/*.yaml' 'lib/netplan/*.yaml' 'etc/systemd/network/*' \
  'etc/NetworkManager/system-connections/*.nmconnection'
wanted groups && grep -s '^\(docker\|video\|render\|adm\|sudo\):' etc/group | show groups 0
wanted names && {
  for path in etc/netplan/* run/netplan/* etc/systemd/network/* run/systemd/network/* \
    etc/NetworkManager/system-connections/* run/NetworkManager/system-connections/* var/lib/systemd/linger/* \
    etc/sysctl.d/* etc/udev/rules.d/* etc/security/limits.d/* etc/cdi/* var/run/cdi/*; do
    [ -e "$path" ] && printf '%s\n' "$path"
  done
} | show names 0
wanted links && {
  for path in etc/systemd/system/sleep.target etc/systemd/system/suspend.target etc/systemd/system/hibernate.target \
    etc/systemd/system/hybrid-sleep.target etc/systemd/system/default.target sys/class/net/*/device \
    etc/systemd/system/sysinit.target.wants/systemd-timesyncd.service etc/systemd/system/earlyoom.service; do
    [ -L "$path" ] && printf '%s -> %s\n' "$path" "$(readlink "$path")"
  done
} | show links 0
tenths=0
for name in ${ASKED:-}; do
  while [ ! -e "$DIR/$name.code" ] && [ $tenths -lt 43 ]; do
    sleep 0.1
    tenths=$((tenths + 1))
  done
  show "$name" "$(cat "$DIR/$name.code" 2>/dev/null || echo 124)" <"$DIR/$name"
done
echo "@ end 0"
