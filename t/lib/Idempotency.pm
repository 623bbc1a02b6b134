package Idempotency;

# What the tests share: an upstream that counts, an nginx with the module, a
# client that sees every byte. For scripts, where requests overlap or whole
# responses are compared; a table of requests and answers is written in blocks,
# see Test/Nginx/Idempotency.pm.
#
#       use Idempotency;                         # exports Test::More as well
#       my $n = nginx(server => <<'EOC', workers => 2);
#           location / { idempotency zone=z; proxy_pass http://$TEST_NGINX_BACKEND; }
#       EOC
#       my $a = $n->post('/x?id=t1', key => 't1', body => 'b');
#       my $b = $n->post('/x?id=t1', key => 't1', body => 'b');
#       same_replay($a, $b, 'a name');           # all but Date and the marker
#       is(executions('t1'), 1, 'executed once');
#       done_testing();
#
#    nginx(%o): main http server (config text), zone => 0 (no default zone z),
#      workers (1), log_level (info), modules => [names or paths loaded before
#      ours], modules_after => [...], module => 0 (without ours), allow => qr//
#      (error log lines that are expected), descriptors => N (no process may
#      have more), files => { 'html/a' => bytes },
#      conf => whole file. Dies, with the log, if nginx does not start.
#      In config text $TEST_NGINX_BACKEND, _FASTCGI, _SCGI, _UWSGI are
#      127.0.0.1:port of the backends, $TEST_NGINX_DEAD one where nobody listens
#      or will, backend('dead') its port; $TEST_NGINX_PORT nginx's own port,
#      $TEST_NGINX_RAND_PORT_n further free ports, $TEST_NGINX_ROOT its prefix.
#    $n->post|get(URI, %o), $n->request(METHOD, URI, %o): one connection each.
#      %o: key body headers => ['A: b'] type chunked => 1 | [pieces]
#      version => '1.0' host close port timeout; returns the response:
#      { status reason version head lines => [...] body trailers => [...]
#        interim => [...] raw chunked broken closed }, methods header(NAME) (all
#      values joined by ', '), has(NAME), replayed(). No answer: status 0.
#    $n->start(METHOD, URI, %o): sends, returns the connection; ->response
#      reads the next response, ->closed waits for EOF, ->close ->reset.
#    Whatever waits does so for patience() seconds: far longer than any machine
#      takes, so that it ends a test that fails, and none that is slow.
#    $n->connect(port => N): a connection; ->send(bytes).
#    message(METHOD, URI, %o): the bytes that request() sends.
#    $n->curl(args): response as curl got it (HTTP/2, TLS); args may say URL
#      paths as '/x' or full URLs.
#    $n->log, $n->access_log (needs log lines in the config), $n->port(n),
#      $n->root, $n->pid, $n->workers (pids), $n->wait_log(qr//),
#      $n->reload(same options as nginx(), or none) waits for the new workers
#      and returns 1, or 0 if nginx refused the configuration, $n->signal(QUIT),
#      $n->stop (also at the end of the test; checks the log: no [alert],
#      [emerg], [crit], Sanitizer report, nor a worker that died of a signal).
#    same_message(a, b, name): the comparison alone, without asking who is marked.
#    config_test(%o): nginx -t with such a configuration: (ok, output, the file).
#    executions(id), go(id), held(id, n) waits until n requests are held,
#    last_request(id): "METHOD URI VERSION\nheader lines\n\nbody".
#    until_true { ... } seconds: polls, returns what the block returned.
#    within SECONDS, sub { ... }: for what holds for a while only. Does it until
#      that took less than so long, and returns what it then returned.
#    child(sub { ... }): the pid of a process that ends with the test at the latest.
#    certificate(): the directory of cert.pem, for localhost, and key.pem.
#    has_directive(text): does nginx know it (in http, server and location)?
#    has_module(name): the path of one of Debian's dynamic modules, or undef.
#
# BACKEND (backend.pl): the query string says what an execution does.
#    id=X            whose counter (default: the path)
#    status=201 reason=Made%20It h=Name:%20value (repeats, in this order)
#    ct=type noct=1 noexec=1 (leave out X-Exec, the execution's number)
#    body=text | size=N (binary, depends on the execution) | echo=1 (the
#      request as received) | sha=1 (SHA-256 and length of its body);
#      default "exec=N id=X\n"
#    te=cl|chunked|close trailer=Name:%20v early=103%20Link:%20x
#    delay=ms bdelay=ms (in mid body) gate=1 (before the header) gate=body
#    cut=N (only N bytes of the body, then close) close=1 (before the header)
#    rst=1 (reset; with cut, after it) raw=bytes (the whole response)

use strict;
use warnings;

use Cwd qw(abs_path);
use Errno qw(EAGAIN EWOULDBLOCK);
use Fcntl qw(F_SETFD FD_CLOEXEC);
use File::Basename qw(dirname);
use File::Path qw(make_path);
use File::Temp ();
use IO::Select;
use IO::Socket::INET;
use POSIX qw(WNOHANG);
use Socket qw(SOL_SOCKET SO_LINGER PF_INET SOCK_STREAM INADDR_LOOPBACK
              pack_sockaddr_in unpack_sockaddr_in);
use Test::More ();
use Time::HiRes qw(time sleep);

our @EXPORT = qw(nginx config_test message same_message same_replay executions go held
                 last_request until_true has_module has_directive pattern
                 free_port backend patience within
                 module_path certificate child);

my $lib = abs_path(dirname(__FILE__));
my $root = dirname(dirname($lib));

# As util/test says; else what util/build made. Empty: the module is linked into
# that nginx.
my $build = abs_path(($ENV{BUILD_DIR} // "$root/build") . '/.');
my $module = $ENV{IDEMPOTENCY_MODULE}
             // "$build/ngx_http_idempotency_module.so" =~ s/^.*$/-e $& ? $& : ''/er;
my $binary = $ENV{TEST_NGINX_BINARY}
             || (-x "$build/nginx" ? "$build/nginx" : 'nginx');

my $load_module = length $module ? "load_module $module;\n" : '';

my $tmp = File::Temp->newdir('idempotency-XXXXXX', TMPDIR => 1);
my ($owner, $lifeline, $backend_pid, $dead, @running, %ports) = ($$);
my @children;

# A worker that runs as another user must get through to its files.
chmod 0755, $tmp;


sub import {
    my ($class, @args) = @_;

    my $caller = caller;

    start_backend() unless $backend_pid;

    no strict 'refs';
    *{"${caller}::$_"} = \&$_ for @EXPORT;
    Test::More->export_to_level(1);

    strict->import;
    warnings->import;
}


# An END block, and a signal still runs it: nothing outlives the test.

$SIG{$_} = sub { exit 1 } for qw(INT TERM HUP PIPE);

END {
    if ($$ == $owner) {
        local $?;
        $_->stop for splice @running;

        kill KILL => @children;
        waitpid $_, 0 for @children;

        if ($backend_pid) {
            close $lifeline;
            waitpid $backend_pid, 0;
        }
    }
}


# --- the backend ------------------------------------------------------------

sub start_backend {
    my @fd;
    my @keep;

    for my $proto (qw(http fastcgi scgi uwsgi)) {
        my $s = IO::Socket::INET->new(Listen => 511, LocalAddr => '127.0.0.1',
                                      ReuseAddr => 1)
            or die "backend: $!";

        $ports{$proto} = $s->sockport;
        $ENV{'TEST_NGINX_' . ($proto eq 'http' ? 'BACKEND' : uc $proto)}
            = '127.0.0.1:' . $s->sockport;
        push @keep, $s;
        push @fd, "$proto=" . fileno $s;
    }

    # taken, so that it is nobody else's, but not listened at
    socket($dead, PF_INET, SOCK_STREAM, 0)
        && bind($dead, pack_sockaddr_in(0, INADDR_LOOPBACK))
        or die "bind: $!";
    $ports{dead} = (unpack_sockaddr_in getsockname $dead)[0];
    $ENV{TEST_NGINX_DEAD} = "127.0.0.1:$ports{dead}";

    pipe(my $read, $lifeline) or die "pipe: $!";

    $backend_pid = fork // die "fork: $!";

    if ($backend_pid == 0) {
        fcntl $_, F_SETFD, 0 for $read, @keep;
        exec $^X, "$lib/backend.pl", fileno $read, @fd
            or POSIX::_exit(127);
    }
}


sub backend { return $ports{$_[0] // 'http'} }


sub ask {
    my ($path) = @_;

    my $c = Idempotency::Connection->new(backend());
    $c->send("GET $path HTTP/1.0\r\n\r\n");

    my $r = $c->response('GET');
    die "backend: no answer to $path" unless $r->{status};

    return $r->{body};
}


sub escape { (my $s = shift) =~ s/([^\w.~-])/sprintf '%%%02X', ord $1/ge; $s }

# Of one counter, or of all.

sub executions { return ask('/count' . (@_ ? '?id=' . escape(shift) : '')) }

sub go { return ask('/go?id=' . escape(shift)) }

sub held { return ask('/held?id=' . escape($_[0]) . '&n=' . ($_[1] // 1)) }

sub last_request { return ask('/last?id=' . escape(shift)) }


# The body that the backend makes for size=N in its execution number M.

sub pattern {
    my ($size, $exec) = @_;

    my $block = join '', map { chr(($_ * 167 + $exec * 59) & 255) } 0 .. 255;

    return substr $block x (1 + $size / 256), 0, $size;
}


# A key of format uuid7 that was made so many seconds ago; a number tells those
# of one millisecond apart. %o: version, variant.

my $made = 0;

sub uuid7 {
    my ($ago, %o) = @_;

    return sprintf('%012x', (time - $ago) * 1000) =~ s/.{8}\K/-/r
           . sprintf('-%s%03x-%sbcd-0123456789ab', $o{version} // 7,
                     $made++ % 4096, $o{variant} // 'a');
}


# --- small things -----------------------------------------------------------

sub module_path { return $module }

sub patience { return 120 }


# A process beside the test, which ends with it at the latest.

sub child {
    my ($code) = @_;

    my $pid = fork // die "fork: $!";

    if (!$pid) {
        $SIG{$_} = 'DEFAULT' for qw(INT TERM HUP PIPE);
        $code->();
        POSIX::_exit(0);
    }

    push @children, $pid;

    return $pid;
}


# The directory of a certificate for localhost, cert.pem, and its key, key.pem.

sub certificate {
    my $dir = "$tmp/pki";

    system("mkdir $dir && openssl req -x509 -newkey rsa:2048 -nodes -days 2"
           . " -subj /CN=localhost -keyout $dir/key.pem -out $dir/cert.pem"
           . " 2>$dir/openssl.log") == 0
        or die 'no certificate' unless -e "$dir/cert.pem";

    return $dir;
}


sub until_true (&;$) {
    my ($code, $timeout) = @_;

    my $end = time + ($timeout // patience());

    while (1) {
        my $r = $code->();
        return $r if $r || time > $end;
        sleep 0.01;
    }
}


sub within {
    my ($seconds, $code) = @_;

    my @r;

    for (1 .. 50) {
        my $from = time;

        @r = $code->();
        last if time - $from < $seconds;
    }

    return wantarray ? @r : $r[-1];
}


# Outside of the range of ports that the kernel hands out by itself. Test files
# run side by side, so each takes ports in blocks that are its own for as long as
# it lives, by listening at the first port of a block.

my (@held, @given);

sub free_port {
    my $listen = sub {
        return IO::Socket::INET->new(Listen => 1, LocalAddr => '127.0.0.1',
                                     LocalPort => $_[0], ReuseAddr => 1);
    };

    for (1 .. 1000) {
        if (!@given) {
            my $first = 10240 + 40 * int rand 500;

            push @held, $listen->($first) // next;
            @given = $first + 1 .. $first + 39;
        }

        my $port = shift @given;
        my $s = $listen->($port) or next;
        close $s;

        return $port;
    }

    die 'no free port';
}


sub has_module {
    my ($name) = @_;

    my $v = `$binary -V 2>&1`;
    my ($dir) = $v =~ /--modules-path=(\S+)/;

    my ($so) = grep { -e } map { "$_/$name.so" }
               $dir // (), '/usr/lib/nginx/modules' or return undef;

    # it may be there for another nginx than the one under test; what it lacks
    # may also be ndk_http_module only
    my (undef, $log) = config_test(module => 0, main => "load_module $so;\n");

    return $log =~ /binary compatible| instead of |undefined symbol: (?!ndk_)/
           ? undef : $so;
}


sub has_directive {
    return (config_test(module => 0, server => "location / { $_[0] }"))[0];
}


# Two whole responses are the same bytes, line by line and in order. Only the
# marker, Date and Connection may differ, and how the body was cut into chunks:
# that is no part of the message.

sub same_message {
    my ($first, $again, $name) = @_;

    local $Test::Builder::Level = $Test::Builder::Level + 1;

    my ($a, $b) = map {
        my $r = $_;
        join("\n", $r->{line},
                  grep(!/^(?:Date|Connection|Idempotent-Replayed):/i,
                       @{$r->{lines}}),
                  $r->{broken} ? 'BROKEN' : '', $r->{body}, '',
                  @{$r->{trailers}});
    } $first, $again;

    return Test::More::pass($name) if $a eq $b && $first->{status};

    Test::More::fail($name);

    # the first difference is enough: bodies are long and binary
    my $i = 0;
    $i++ while $i < length $a && $i < length $b
               && substr($a, $i, 1) eq substr($b, $i, 1);

    my $from = $i < 200 ? 0 : $i - 200;
    Test::More::diag('lengths ', length $a, ', ', length $b,
                     ", differ at $i:");
    for (['first', $a], ['again', $b]) {
        (my $s = substr $_->[1], $from, $i - $from + 100)
            =~ s/([^ -~\n])/sprintf '\\x%02x', ord $1/ge;
        Test::More::diag("--- $_->[0]:\n$s");
    }

    return 0;
}


# The same, where the first is an execution and the other its replay.

sub same_replay {
    my ($first, $again, $name) = @_;

    local $Test::Builder::Level = $Test::Builder::Level + 1;

    for ([$first, 0], [$again, 1]) {
        my ($r, $marked) = @$_;
        my $got = $r->header('Idempotent-Replayed') // '';

        next if $got eq ($marked ? 'true' : '');

        Test::More::fail($name);
        Test::More::diag($marked ? 'the repeat is not marked as a replay'
                                 : 'the first is marked as a replay');
        Test::More::diag($r->{head});
        return 0;
    }

    return same_message($first, $again, $name);
}


# --- requests ---------------------------------------------------------------

sub message {
    my ($method, $uri, %o) = @_;

    my $version = $o{version} // '1.1';
    my $body = $o{body};
    my @h = ('Host: ' . ($o{host} // 'localhost'));

    push @h, "Idempotency-Key: $o{key}" if defined $o{key};
    push @h, "Content-Type: $o{type}" if defined $o{type};
    push @h, @{$o{headers} // []};
    push @h, 'Connection: close' if $o{close};

    if ($o{chunked}) {
        my @parts = ref $o{chunked} ? @{$o{chunked}} : $body // '';

        push @h, 'Transfer-Encoding: chunked';
        $body = join '', map({ sprintf "%x\r\n%s\r\n", length, $_ }
                             grep length, @parts), "0\r\n\r\n";

    } elsif (defined $body && !grep /^Content-Length:/i, @h) {
        push @h, 'Content-Length: ' . length $body;
    }

    return join "\r\n", "$method $uri HTTP/$version", @h, '', $body // '';
}


# --- nginx ------------------------------------------------------------------

sub config {
    my ($self, %o) = @_;

    my $dir = $self->{root};

    make_path("$dir/logs", "$dir/html", "$dir/temp");

    for my $file (keys %{$o{files} // {}}) {
        make_path(dirname("$dir/$file"));
        open my $f, '>:raw', "$dir/$file" or die "$dir/$file: $!";
        print $f $o{files}{$file};
        close $f;
    }

    my $load = sub {
        my $m = shift;
        $m = has_module($m) // die "no module $m" unless $m =~ m{/};
        return "load_module $m;\n";
    };

    my $text = $o{conf} // join '',
        map({ $load->($_) } @{$o{modules} // []}),
        ($o{module} // 1) ? $load_module : '',
        map({ $load->($_) } @{$o{modules_after} // []}),
        $> == 0 ? "user root;\n" : '',
        'worker_processes ' . ($o{workers} // 1) . ";\n",
        "env ASAN_OPTIONS;\nenv UBSAN_OPTIONS;\n",
        $o{main} // '', "\n",
        "events { worker_connections 512; }\n",
        "http {\n",
        "default_type text/plain;\n",
        map({ "${_}_temp_path $dir/temp/$_;\n" }
            qw(client_body proxy fastcgi scgi uwsgi)),
        $o{http} && $o{http} =~ /\baccess_log\b/ ? ''
            : "access_log off;\n",
        ($o{zone} // 1) && ($o{module} // 1)
            ? "idempotency_zone zone=z:16m;\n" : '',
        $o{http} // '', "\n",
        defined $o{server}
            ? "server {\nlisten 127.0.0.1:\$TEST_NGINX_PORT;\n"
              . "server_name localhost;\n$o{server}\n}\n" : '',
        "}\n";

    my %env = (PORT => $self->port(0), ROOT => $dir);

    $text =~ s{\$TEST_NGINX_(\w+)}{
        my $v = $1;
        $v =~ /^RAND_PORT_(\d+)$/ ? $self->port($1)
            : $env{$v} // $ENV{"TEST_NGINX_$v"}
            // die "unknown \$TEST_NGINX_$v";
    }ge;

    open my $f, '>', "$dir/nginx.conf" or die "$dir/nginx.conf: $!";
    print $f $text;
    close $f;

    return $text;
}


# where nginx logs until it has read its configuration: it can be told since
# 1.19.5

my $takes_log;

sub takes_log { return $takes_log //= `$binary -h 2>&1` =~ /-e filename/ || 0 }


sub command {
    my ($self, %o) = @_;

    my $level = $o{log_level} // $ENV{TEST_NGINX_LOG_LEVEL} // 'info';

    return ($binary, takes_log() ? ('-e', "$self->{root}/logs/error.log") : (),
            '-p', "$self->{root}/", '-c', "$self->{root}/nginx.conf",
            '-g', "pid $self->{root}/nginx.pid; daemon off; "
                  . "error_log $self->{root}/logs/error.log $level;");
}


my $instances = 0;

sub instance {
    my (%o) = @_;

    my $self = bless { root => "$tmp/" . ++$instances, ports => {}, %o },
                     'Idempotency::Nginx';
    make_path($self->{root});

    return $self;
}


sub nginx {
    my (%o) = @_;

    # Another test may take a port between our finding it free and nginx's
    # bind: then try again with others.

    for my $try (1 .. 5) {
        my $self = instance(%o);

        config($self, %o);

        my @cmd = command($self, %o);

        unshift @cmd, 'sh', '-c', "ulimit -n $o{descriptors}; exec \"\$@\"", 'sh'
            if $o{descriptors};

        my $pid = fork // die "fork: $!";

        if ($pid == 0) {
            open STDOUT, '>>', "$self->{root}/logs/stderr.log";
            open STDERR, '>&', \*STDOUT;
            exec @cmd or POSIX::_exit(127);
        }

        $self->{pid} = $pid;

        # the master listens before it has workers
        my $up = until_true {
            return -1 if waitpid($pid, WNOHANG) == $pid;
            return $self->workers >= ($o{workers} // 1);
        };

        if ($up && $up ne -1) {
            push @running, $self;
            return $self;
        }

        kill KILL => $pid if !$up;
        waitpid $pid, 0 if !$up;

        my $log = $self->log . $self->slurp('logs/stderr.log');
        next if $try < 5 && $log =~ /Address already in use/;

        die "nginx did not start:\n$log";
    }
}


sub config_test {
    my (%o) = @_;

    my $self = instance(%o);
    my $conf = config($self, %o);
    my @cmd = command($self, %o);
    my $pid = open(my $out, '-|') // die "fork: $!";

    if ($pid == 0) {
        open STDERR, '>&', \*STDOUT;
        exec @cmd, '-t' or POSIX::_exit(127);
    }

    local $/;
    my $text = <$out>;
    close $out;

    # the path of a test's directory is of no interest to anybody
    $text =~ s/\Q$self->{root}\E/ROOT/g;

    return ($? == 0, $text, $conf);
}


# What may not stand in an error log. Clients that just close a TLS connection are
# critical to nginx before 1.21.0 with OpenSSL 3.

our $bad = qr/\[(?:alert|emerg|crit)\](?!.*unexpected\ eof\ while\ reading)
             |Sanitizer|runtime error:|exited\ on\ signal/x;


package Idempotency::Nginx;

use strict;
use warnings;

use Time::HiRes qw(time sleep);
use POSIX qw(WNOHANG);

sub root { return $_[0]{root} }

sub pid { return $_[0]{pid} }

sub port {
    my ($self, $n) = @_;

    return $self->{ports}{$n // 0} //= Idempotency::free_port();
}


sub slurp {
    my ($self, $file) = @_;

    open my $f, '<:raw', "$self->{root}/$file" or return '';
    local $/;

    return scalar(<$f>) // '';
}


sub log { return $_[0]->slurp('logs/error.log') }

sub access_log { return $_[0]->slurp('logs/access.log') }


sub wait_log {
    my ($self, $re) = @_;

    return Idempotency::until_true(sub { $self->log =~ $re });
}


# The processes that the master has now and that are not on their way out.

sub workers {
    my ($self) = @_;

    my $pid = $self->{pid};

    open my $f, '<', "/proc/$pid/task/$pid/children" or return ();
    my @children = split ' ', scalar(<$f>) // '';

    return grep {
        my ($c, $line);
        $line = <$c> if open $c, '<', "/proc/$_/cmdline";
        ($line // '') =~ /^nginx: worker process\b(?!.*shutting)/;
    } @children;
}


sub signal { return kill $_[1], $_[0]{pid} }


sub reload {
    my ($self, %o) = @_;

    if (%o) {
        $self->{$_} = $o{$_} for keys %o;
        Idempotency::config($self, map { $_ => $self->{$_} }
                            grep { !/^(?:root|ports|pid)$/ } keys %$self);
    }

    my %old = map { $_ => 1 } $self->workers;
    my $seen = length $self->log;

    $self->signal('HUP');

    my $result = Idempotency::until_true(sub {
        return -1 if substr($self->log, $seen) =~ /\[emerg\]/;

        my @now = $self->workers;
        return @now >= ($self->{workers} // 1) && !grep $old{$_}, @now;
    });

    die "nginx did not reload\n" unless $result;

    return $result eq -1 ? 0 : 1;
}


sub stop {
    my ($self, $signal) = @_;

    return if $self->{stopped}++;

    @running = grep { $_ != $self } @running;

    local $?;
    local $Test::Builder::Level = $Test::Builder::Level + 1;

    # a fast shutdown cuts connections that idle clients forgot to close
    $self->signal($signal // 'TERM');

    my $pid = $self->{pid};
    my $gone = Idempotency::until_true(sub { waitpid($pid, WNOHANG) == $pid });

    if (!$gone) {
        kill KILL => $self->workers, $pid;
        waitpid $pid, 0;
    }

    my @lines = grep { $_ =~ $Idempotency::bad && !($self->{allow} && $_ =~ $self->{allow}) }
                split /\n/, $self->log . $self->slurp('logs/stderr.log');

    # the test may have planned or finished already: speak up only when needed
    if (!$gone || @lines) {
        Test::More::fail($gone ? 'nothing bad in the error log'
                               : 'nginx stops when told to');
        Test::More::diag($_) for @lines > 20 ? @lines[0 .. 19] : @lines;
        $? = 1;
    }

    return $gone && !@lines;
}


sub connect {
    my ($self, %o) = @_;

    return Idempotency::Connection->new($o{port} // $self->port(0));
}


sub start {
    my ($self, $method, $uri, %o) = @_;

    my $c = $self->connect(%o);

    $c->{method} = $method;
    $c->{timeout} = $o{timeout};
    $c->send(Idempotency::message($method, $uri, %o));

    return $c;
}


sub request {
    my ($self, @args) = @_;

    return $self->start(@args)->response;
}


sub post {
    my ($self, $uri, %o) = @_;

    $o{body} //= '' unless $o{chunked};

    return $self->request('POST', $uri, %o);
}


sub get {
    my ($self, @args) = @_;

    return $self->request('GET', @args);
}


# HTTP/2 and TLS. curl prints what it received as HTTP/1.1 or HTTP/2 text.

sub curl {
    my ($self, @args) = @_;

    my $port = $self->port(0);
    s{^/}{http://127.0.0.1:$port/} for @args;

    my $head = "$self->{root}/curl.head";
    my $pid = open(my $out, '-|') // die "fork: $!";

    if ($pid == 0) {
        exec 'curl', '-q', '-s', '--noproxy', '*', '-D', $head,
             '--max-time', Idempotency::patience(), @args or POSIX::_exit(127);
    }

    binmode $out;
    my $body = do { local $/; <$out> } // '';
    close $out;

    my $text = $self->slurp('curl.head');

    # interim responses, the head, and, behind an empty line, trailers
    my (@interim, $r);

    for my $part (split /\r\n\r\n/, $text) {
        if ($r) {
            push @{$r->{trailers}}, split /\r\n/, $part;

        } elsif ($part =~ m{^HTTP/\S+ 1\d\d}) {
            push @interim, $part;

        } else {
            $r = Idempotency::Response->new("$part\r\n\r\n");
        }
    }

    $r //= Idempotency::Response->new('none 0 no response');
    $r->{body} = $body;
    $r->{interim} = \@interim;
    $r->{raw} = $text . $body;

    return $r;
}


package Idempotency::Connection;

use strict;
use warnings;

use Errno qw(EAGAIN EWOULDBLOCK EINTR);
use IO::Select;
use IO::Socket::INET;
use Socket qw(SOL_SOCKET SO_LINGER);
use Time::HiRes qw(time);

sub new {
    my ($class, $port) = @_;

    my $s = IO::Socket::INET->new(PeerAddr => '127.0.0.1', PeerPort => $port)
        or die "connect to port $port: $!\n";

    $s->blocking(0);

    return bless { sock => $s, buf => '', eof => 0, method => 'GET' }, $class;
}


# Reads meanwhile, or a long body and an early answer would wait for each other.

sub send {
    my ($self, $data) = @_;

    local $SIG{PIPE} = 'IGNORE';

    my $end = time + Idempotency::patience();
    my $sel = IO::Select->new($self->{sock});

    while (length $data && time < $end) {
        my ($r, $w) = IO::Select->select($sel, $sel, undef, 1);

        $self->fill if $r && @$r;

        if ($w && @$w) {
            my $n = syswrite $self->{sock}, $data, 65536;

            if (defined $n) {
                substr($data, 0, $n) = '';

            } elsif ($! != EAGAIN && $! != EWOULDBLOCK && $! != EINTR) {
                last;
            }
        }

        last if $self->{eof};
    }

    return !length $data;
}


sub fill {
    my ($self) = @_;

    my $n = sysread $self->{sock}, $self->{buf}, 65536, length $self->{buf};

    return if !defined $n && ($! == EAGAIN || $! == EWOULDBLOCK || $! == EINTR);

    $self->{reset} = 1 if !defined $n;
    $self->{eof} = 1 if !$n;
}


# Waits until the pattern stands in the buffer, the peer closed, or the end.

sub want {
    my ($self, $test, $end) = @_;

    $end //= time + Idempotency::patience();

    my $sel = IO::Select->new($self->{sock});

    while (1) {
        my $r = $test->();
        return $r if defined $r;
        return undef if $self->{eof};

        my $left = $end - time;
        return undef if $left <= 0;

        $self->fill if $sel->can_read($left);
    }
}


# The next response on this connection; if none came, one of status 0.

sub response {
    my ($self, $method, $timeout) = @_;

    my $end = time + ($timeout // $self->{timeout}
                      // Idempotency::patience());
    my @interim;

    $method //= $self->{method};

    while (1) {
        my $head = $self->want(sub {
            $self->{buf} =~ s/\A(.*?\r\n\r\n)//s ? $1 : undef
        }, $end);

        return Idempotency::Response->new('none 0 no response')
            unless defined $head;

        my $r = Idempotency::Response->new($head);

        if ($r->{status} < 200 && $r->{status} != 101) {
            push @interim, $head;
            next;
        }

        $r->{interim} = \@interim;
        $r->{raw} = join '', @interim, $head;
        $self->body($r, $method, $end);

        return $r;
    }
}


sub body {
    my ($self, $r, $method, $end) = @_;

    my $take = sub {
        my ($n) = @_;
        my $got = $self->want(sub {
            length $self->{buf} >= $n ? substr($self->{buf}, 0, $n, '') : undef
        }, $end);

        # all there is, if it was cut off
        if (!defined $got) {
            $r->{broken} = 1;
            $got = $self->{buf};
            $self->{buf} = '';
        }

        $r->{raw} .= $got;
        return $got;
    };

    my $line = sub {
        my $got = $self->want(sub {
            $self->{buf} =~ s/\A([^\n]*\n)// ? $1 : undef
        }, $end);

        $r->{broken} = 1 if !defined $got;
        $r->{raw} .= $got // '';
        return $got // '';
    };

    return if $method eq 'HEAD' || $r->{status} =~ /^(?:101|204|304)$/;

    if (($r->header('Transfer-Encoding') // '') =~ /chunked/i) {
        $r->{chunked} = 1;

        while (!$r->{broken}) {
            my $n = hex($line->() =~ /^([0-9a-f]+)/i ? $1 : 0);
            last if $r->{broken} || !$n;

            $r->{body} .= $take->($n);
            $line->();
        }

        while (!$r->{broken}) {
            (my $l = $line->()) =~ s/\r?\n\z//;
            last if $l eq '';
            push @{$r->{trailers}}, $l;
        }

    } elsif (defined(my $n = $r->header('Content-Length'))) {
        $r->{body} = $take->($n);

    } else {
        $self->want(sub { undef }, $end);
        $r->{closed} = $self->{eof};
        $r->{broken} = 1 if !$self->{eof} || $self->{reset};
        $r->{body} = $self->{buf};
        $r->{raw} .= $self->{buf};
        $self->{buf} = '';
    }
}


# Waits for the peer's end of the connection.

sub closed {
    my ($self) = @_;

    $self->want(sub { undef });

    return $self->{eof};
}


# Anything to read within so many seconds? For "still waiting" assertions.

sub readable {
    my ($self, $timeout) = @_;

    return 1 if length $self->{buf} || $self->{eof};

    return scalar IO::Select->new($self->{sock})->can_read($timeout // 0);
}


sub close { CORE::close($_[0]{sock}) }

sub reset {
    my ($self) = @_;

    setsockopt $self->{sock}, SOL_SOCKET, SO_LINGER, pack 'ii', 1, 0;
    CORE::close($self->{sock});
}


package Idempotency::Response;

use strict;
use warnings;

sub new {
    my ($class, $head) = @_;

    my ($line, @lines) = split /\r\n/, $head;
    my ($version, $status, $reason) = split / /, $line, 3;

    return bless { head => $head, line => $line, version => $version,
                   status => $status, reason => $reason // '',
                   lines => \@lines, body => '', trailers => [],
                   interim => [], broken => 0 }, $class;
}


sub header {
    my ($self, $name) = @_;

    my @v = map { /^\Q$name\E:[ \t]*(.*)$/i ? $1 : () } @{$self->{lines}};

    return @v ? join ', ', @v : undef;
}


sub has { return defined $_[0]->header($_[1]) }

sub replayed { return ($_[0]->header('Idempotent-Replayed') // '') eq 'true' }


# --- blocks -----------------------------------------------------------------

package Idempotency;

sub load_module { return $load_module }


# Test::Nginx::Socket reads these when it is loaded. Returns a directory.

sub blocks {
    my $port = free_port();
    my $log = "$tmp/error.log";

    start_backend() unless $backend_pid;

    # It says -e to an nginx that may not know it, and to which log: all goes
    # to one that outlives each server, what is said before it is open as well.
    open my $f, '>', "$tmp/nginx" or die "$tmp/nginx: $!";
    print $f "#!/bin/sh\n",
             "case \$1 in -e) shift 2 ;; -[vV]) exec $binary \$1 ;; esac\n",
             "exec $binary ", takes_log() ? "-e $log " : '',
             "\"\$@\" 2>>$log\n";
    close $f;
    chmod 0755, "$tmp/nginx";

    $ENV{TEST_NGINX_BINARY} = "$tmp/nginx";
    $ENV{TEST_NGINX_CLIENT_PORT} = $port;
    $ENV{TEST_NGINX_SERVER_PORT} = "127.0.0.1:$port";
    $ENV{TEST_NGINX_SERVROOT} = "$tmp/servroot";

    return $tmp;
}


1;
