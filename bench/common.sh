# shellcheck shell=bash disable=SC2034,SC2154
# For the commands of this directory that run nginx under load: what is sent and
# answered, where what is measured has a core for itself, servers that start and
# end, and loads.  They have set `command_name`, and what they need installed;
# load() sends for $seconds over $connections.


# 500 bytes go up and 350 come down

body='{"order":"A-20417","customer":{"id":81244,"name":"Ada Example",'
body+='"email":"ada@example.com"},"currency":"EUR","items":[{"sku":"KB-104",'
body+='"title":"Keyboard, German layout","quantity":1,"price":"79.90"},'
body+='{"sku":"CB-USB-C2","title":"Cable USB-C, 2 m","quantity":3,'
body+='"price":"12.50"}],"ship_to":{"street":"Example Street 12",'
body+='"zip":"10115","city":"Berlin","country":"DE"},"payment":'
body+='{"method":"card","token":"tok_9f8e7d6c5b4a39281706"},"note":"'
body+=$(printf "%$((500 - ${#body} - 2))s" '' | tr ' ' n)'"}'

answer='{"order":"A-20417","state":"accepted",'
answer+='"id":"5f0c2a7e-93d1-4c1b-8a55-0d1f6a2b9c3e","currency":"EUR",'
answer+='"total":"117.40","items":2,"created":"2026-01-15T10:22:31Z",'
answer+='"links":{"self":"/orders/5f0c2a7e",'
answer+='"cancel":"/orders/5f0c2a7e/cancel"},"message":"'
answer+=$(printf "%$((350 - ${#answer} - 2))s" '' | tr ' ' m)'"}'

[ "${#body} ${#answer}" = "500 350" ] || die "body or answer has another size"
export BENCH_BODY=$body


# -- set-up ------------------------------------------------------------------

module=${IDEMPOTENCY_MODULE:-}

if [ -z "$module" ]; then
    bash "$root/util/build"
    module=$BUILD_DIR/ngx_http_idempotency_module.so
fi

absolute_path "$module"
module=$absolute
[ -f "$module" ] || die "there is no module $module"

# util/build leaves an nginx beside the module if it built that, too

nginx=${TEST_NGINX_BINARY:-}

if [ -z "$nginx" ] && [ -x "${module%/*}/nginx" ]; then
    nginx=${module%/*}/nginx
fi

nginx=$(command -v "${nginx:-nginx}") || die "there is no nginx"

dir=$(mktemp -d)
chmod 755 "$dir"                # the workers may run as somebody else
mkdir -m 1777 "$dir/callgrind"  # and leave their counts there

started=()
declare -A port_of worker_of ns_of count_of sha_of


stop() {
    kill -TERM "$1" 2>/dev/null || true
    wait "$1" 2>/dev/null || true
}


# shellcheck disable=SC2317 # called by the trap
clean_up() {
    local pid

    for pid in ${started[@]+"${started[@]}"}; do
        stop "$pid"
    done

    rm -rf "$dir"
}


trap clean_up EXIT
trap 'exit 130' INT TERM


# The worker under test gets the first core that we may use, the upstream the
# second and the client the third; with two cores these two share one.

allowed_cores() {
    local part

    for part in $(taskset -cp $$ | sed 's/.*: //; s/,/ /g'); do
        seq "${part%-*}" "${part#*-}"
    done
}


mapfile -t cores < <(allowed_cores)

worker_core=${cores[0]}
upstream_core=${cores[1]:-$worker_core}
client_core=${cores[2]:-$upstream_core}

[ ${#cores[@]} -gt 1 ] \
    || say "a single core: the worker shares it with the client and the" \
           "upstream, take the times with a grain of salt"


# -- the servers -------------------------------------------------------------

# common_conf NAME [LEVEL]: what is not to be compared is the same for all

common_conf() {
    cat <<END
error_log error.log ${2:-warn};
pid $1.pid;
events {
    worker_connections 512;
}
http {
    access_log off;
    default_type application/json;
    keepalive_requests 100000000;
    keepalive_time 1h;
    keepalive_timeout 1h;
    client_body_temp_path temp.body;
    proxy_temp_path temp.proxy;
    fastcgi_temp_path temp.fastcgi;
    uwsgi_temp_path temp.uwsgi;
    scgi_temp_path temp.scgi;
END
}


# the way to the upstream, the same in all versions of nginx

reused_conf() {
    cat <<END
            proxy_pass http://reused;
            proxy_http_version 1.1;
            proxy_set_header Connection "";
END
}


# the answer of an application, and of the "return" beside a replay

answer_conf() {
    cat <<END
            add_header Cache-Control no-store;
            add_header ETag '"5f0c2a7e93d14c1b"';
            add_header Vary "Accept, Origin";
            add_header X-Request-Id "c0a80101-7b2f-4e3d-9a10-6f1e2d3c4b5a";
            ${1:-}
            return 200 '$answer';
END
}


proxy_conf() {
    cat <<END
    upstream reused {
        server 127.0.0.1:${port_of[upstream]};
        keepalive 64;
        keepalive_requests 100000000;
        keepalive_time 1h;
    }
END
}


upstream_conf() {
    common_conf upstream
    cat <<END
    server {
        listen 127.0.0.1:$1;
        location / {
$(answer_conf)
        }
        location = /count {
            stub_status;
        }
    }
}
END
}


answers() {
    (exec 3<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null
}


# start NAME CONF CORE COMMAND...: runs nginx, under COMMAND if there is one,
# with what CONF_conf prints, and waits until it answers.  A port that was free
# when we looked may be taken when nginx binds it: then another one is tried.
# Sets port, master and worker (process ids).

start() {
    local name=$1 conf=$2 core=$3 try deadline

    shift 3

    for try in 1 2 3; do
        free_ports 1
        port=$first_port
        "${conf}_conf" "$port" >"$dir/$name.conf"

        taskset -c "$core" "$@" "$nginx" -p "$dir/" -e error.log \
            -c "$name.conf" -g "daemon off;" >"$dir/$name.out" 2>&1 &
        master=$!
        started+=("$master")

        deadline=$((SECONDS + 120))

        while kill -0 "$master" 2>/dev/null && [ $SECONDS -lt $deadline ]; do
            if answers "$port" && worker=$(pgrep -P "$master"); then
                return
            fi

            sleep 0.05
        done

        grep -qs 'Address already in use' "$dir/error.log" || break
    done

    cat "$dir/$name.out" >&2
    die "nginx did not start: $name, try $try"
}


# -- load --------------------------------------------------------------------

# load URL PREFIX [COUNT]: runs wrk, see load.lua.
# Sets requests and refused.

load() {
    local url=$1 broken

    shift

    # wrk itself knows whole seconds only, but ends in good order on SIGINT

    if ! taskset -c "$client_core" \
             timeout --preserve-status -s INT $seconds \
             wrk -t 1 -c $connections -d 60s -s "$root/bench/load.lua" \
                 "$url" -- "$@" >"$dir/wrk.out" 2>&1 </dev/null \
       || ! read -r _ requests refused broken \
                < <(grep '^BENCH ' "$dir/wrk.out") \
       || [ "$requests" = 0 ] || [ "$broken" != 0 ]
    then
        cat "$dir/wrk.out" >&2
        die "wrk failed: $url $*"
    fi
}


# send PORT URI PREFIX KEYS COUNT: runs bench/send, which says what it does.
# Sets executed, replayed, refused and median.

send() {
    taskset -c "$client_core" perl "$root/bench/send" "$@" >"$dir/send.out" \
        || die "no load: $*"

    # shellcheck disable=SC2034
    read -r executed replayed refused median <"$dir/send.out"
}


# Sets prefix, of keys that no load has had

used=0

next_prefix() {
    used=$((used + 1))
    printf -v prefix %08x $used
}


# what the upstream has executed so far, our own questions left out

questions=0

executions() {
    local asked

    asked=$(curl -s "http://127.0.0.1:${port_of[upstream]}/count" \
            | sed -n '3s/^.* \([0-9][0-9]*\) *$/\1/p')
    questions=$((questions + 1))
    executions=$((asked - questions))
}


# the nanoseconds of CPU that a process has had

cpu_of() {
    local ns

    read -r ns _ <"/proc/$1/schedstat"
    echo "$ns"
}


# -- counts ------------------------------------------------------------------

# life SIDE CASE COUNT: sets total to the user space instructions of a worker
# that answered COUNT requests after a few which are the same for all, and
# crypto to those of them in libcrypto

life() {
    local side=$1 case=$2 count=$3 keys=1000000 file

    start "$side.$case.$count" "$side" "$worker_core" \
        valgrind --tool=callgrind -q --vgdb=no --trace-children=yes \
            --callgrind-out-file="$dir/callgrind/%p"

    file=$dir/callgrind/$worker

    # for a first execution the keys are fresh in both, for a replay the same

    if [ "$case" = replay ]; then
        keys=10
    fi

    next_prefix
    send "$port" "/$case" "$prefix" $keys 10

    [ "$case" = replay ] || next_prefix
    send "$port" "/$case" "$prefix" $keys "$count"

    [ "$refused" = 0 ] || die "$side $case: $refused refused under callgrind"

    stop "$master"

    # Lines with a position and a cost are a function's own, but for the one
    # behind each "calls=", which is what it called.  An object file is named
    # at its first mention and referred to by number from then on.

    read -r total crypto < <(awk '
        /^ob=/            { split($0, part, /[()]/)
                            if (part[3] != "") name[part[2]] = part[3]
                            object = name[part[2]] }
        /^cob=/           { split($0, part, /[()]/)
                            if (part[3] != "") name[part[2]] = part[3] }
        /^calls=/         { called = 1; next }
        /^[0-9+*-]/       { if (!called) { total += $2
                            if (object ~ /libcrypto/) crypto += $2 }
                            called = 0 }
        END               { printf "%.0f %.0f\n", total, crypto }
    ' "$file")

    [ "$total" != 0 ] || die "callgrind left no count for $side $case"
}


# quantile Q: of the numbers on stdin, interpolated

quantile() {
    sort -g | awk -v q="$1" '
        { v[NR] = $1 }
        END {
            at = 1 + q * (NR - 1)
            i = int(at)
            print v[i] + (i < NR ? (at - i) * (v[i + 1] - v[i]) : 0)
        }'
}
