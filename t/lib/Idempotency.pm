package Idempotency;

# What the tests share: an upstream that counts, and an nginx with the module; with
# Client.pm, which sees every byte, and Machine.pm: processes, files, ports, waiting.
# For scripts, where requests overlap or whole responses are compared; a table of
# requests and answers is written in blocks, see Test/Nginx/Idempotency.pm.
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
#    nginx(%o): main http server (config text), zone => 0 (no default zone z, or
#      another text), workers (1), connections (512, for each worker), log_level
#      (info), modules => [names or paths loaded before ours], modules_after =>
#      [...], module => 0 (without ours), allow => qr// (error log lines that are
#      expected), descriptors => N (no process may have more), slowed => [a command
#      that executes it, and whose processes have no titles], user (if it is
#      root who tests: the workers', default root), files =>
#      { 'html/a' => bytes }, conf => whole file. Dies, with the log, if nginx does
#      not start.
#      In config text $TEST_NGINX_BACKEND, _FASTCGI, _SCGI, _UWSGI are
#      127.0.0.1:port of the backends, $TEST_NGINX_DEAD one where nobody listens
#      or will, backend('dead') its port; $TEST_NGINX_PORT nginx's own port,
#      $TEST_NGINX_RAND_PORT_n further free ports, $TEST_NGINX_ROOT its prefix.
#    $n->post|get(URI, %o), $n->request(METHOD, URI, %o): one connection each.
#      %o: key body headers => ['A: b'] type chunked => 1 | [pieces]
#      version => '1.0' host close port timeout; returns the response: Client.pm.
#    $n->start(METHOD, URI, %o): sends, returns the connection.
#    $n->connect(port => N): a connection.
#    $n->curl(args): response as curl got it (HTTP/2, TLS); args may say URL
#      paths as '/x' or full URLs.
#    $n->log, $n->access_log (needs log lines in the config), $n->port(n),
#      $n->root, $n->pid, $n->workers (pids), $n->wait_log(qr//),
#      $n->reload(same options as nginx(), or none) waits for the new workers
#      and returns 1, or 0 if nginx refused the configuration, $n->signal(QUIT),
#      $n->stop (also at the end of the test; checks the log: no [alert],
#      [emerg], [crit], Sanitizer report, nor a worker that died of a signal).
#    config_test(%o): nginx -t with such a configuration: (ok, output, the file).
#    in_memory(): no zone has anything behind it, see stored(). answers_late():
#      the store does, and may not answer at all.
#    $n->racing(sub { ... }, %o): its connections, as soon as so many more requests
#      (or count => N) have met one that is pending: these wait now, or are refused.
#      Needs location /figures/ { idempotency_api; }, and asks there for zone z, over
#      a new connection, or that of another worker: by => connection.
#    $n->heard: waits until whoever asked such a store has an answer, or waits there
#      for another's outcome.
#    executions(id), go(id), held(id, n) waits until n requests are held,
#    last_request(id): "METHOD URI VERSION\nheader lines\n\nbody".
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
use Fcntl qw(F_SETFD);
use File::Basename qw(dirname);
use File::Path qw(make_path);
use IO::Socket::INET;
use POSIX qw(WNOHANG);
use Test::More ();
use Time::HiRes qw(time);

use Client;
use Machine;
use Upstream qw(pattern);

our @EXPORT = qw(nginx config_test message same_message same_replay told
                 executions go held last_request until_true within patience
                 in_memory answers_late has_module has_directive pattern free_port dead_port backend
                 slurp child certificate module_path);

my $lib = abs_path(dirname(__FILE__));
my $root = dirname(dirname($lib));

# As util/test says; else what util/build made. Empty: the module is linked into
# that nginx. Of a store that answers late there is a module of its own.
my $build = (abs_path($ENV{BUILD_DIR} // "$root/build") // '')
            . (answers_late() ? '/late' : '');
my $module = $ENV{IDEMPOTENCY_MODULE}
             // "$build/ngx_http_idempotency_module.so" =~ s/^.*$/-e $& ? $& : ''/er;
my $binary = $ENV{TEST_NGINX_BINARY}
             || (-x "$build/nginx" ? "$build/nginx" : 'nginx');

my $tmp = scratch();
my ($owner, $lifeline, $backend_pid, @running, %ports) = ($$);


sub import {
    my $caller = caller;

    start_backend();

    no strict 'refs';
    *{"${caller}::$_"} = \&$_ for @EXPORT;
    Test::More->export_to_level(1);

    strict->import;
    warnings->import;
}


END {
    if ($$ == $owner) {
        local $?;
        $_->stop for splice @running;
    }
}


# --- the backend ------------------------------------------------------------

sub start_backend {
    return if $backend_pid;

    my @listen;

    for my $proto (qw(http fastcgi scgi uwsgi)) {
        my $s = IO::Socket::INET->new(Listen => 511, LocalAddr => '127.0.0.1',
                                      ReuseAddr => 1)
            or die "backend: $!";

        push @listen, [$proto, $s];
        $ports{$proto} = $s->sockport;
    }

    $ports{dead} = dead_port();
    $ENV{'TEST_NGINX_' . ($_ eq 'http' ? 'BACKEND' : uc)}
        = "127.0.0.1:$ports{$_}" for keys %ports;

    pipe(my $read, $lifeline) or die "pipe: $!";

    # it ends as a child does: others hold the life line, too

    $backend_pid = child(sub {
        fcntl $_, F_SETFD, 0 for $read, map $_->[1], @listen;
        exec $^X, "$lib/backend.pl", fileno $read,
             map "$_->[0]=" . fileno $_->[1], @listen;
    });
}


sub backend { return $ports{$_[0] // 'http'} }


sub ask {
    my ($path, %arg) = @_;

    my $query = join '&', map { "$_=" . $arg{$_}
        =~ s/([^\w.~-])/sprintf '%%%02X', ord $1/ger } keys %arg;
    my $c = Idempotency::Connection->new(backend());
    $c->send("GET $path?$query HTTP/1.0\r\n\r\n");

    my $r = $c->response('GET');
    die "backend: no answer to $path" unless $r->{status};

    return $r->{body};
}


# Of one counter, or of all.

sub executions { return ask('/count', @_ ? (id => $_[0]) : ()) }

sub go { return ask('/go', id => $_[0]) }

sub held { return ask('/held', id => $_[0], n => $_[1] // 1) }

sub last_request { return ask('/last', id => $_[0]) }


# --- small things -----------------------------------------------------------

# A key of format uuid7 that was made so many seconds ago; a number tells those
# of one millisecond apart. %o: version, variant.

my $made = 0;

sub uuid7 {
    my ($ago, %o) = @_;

    return sprintf('%012x', (time - $ago) * 1000) =~ s/.{8}\K/-/r
           . sprintf('-%s%03x-%sbcd-0123456789ab', $o{version} // 7,
                     $made++ % 4096, $o{variant} // 'a');
}


sub module_path { return $module }

sub server_version { return `$binary -v 2>&1` =~ /version: (.*)/ ? $1 : '' }

sub load_module { return length $module ? "load_module $module;\n" : '' }

sub has_module {
    my ($name) = @_;

    my ($dir) = `$binary -V 2>&1` =~ /--modules-path=(\S+)/;
    my ($so) = grep { -e } map { "$_/$name.so" }
               $dir // (), '/usr/lib/nginx/modules' or return undef;

    # it may be there for another nginx than the one under test; what it lacks
    # may also be ndk_http_module only
    my (undef, $log) = config_test(module => 0, main => "load_module $so;\n");

    return $log =~ /binary compatible|built not for | instead of |undefined symbol: (?!ndk_)/
           ? undef : $so;
}


sub has_directive {
    return (config_test(module => 0, server => "location / { $_[0] }"))[0];
}


# --- nginx ------------------------------------------------------------------

sub config {
    my ($self, %o) = @_;

    my $dir = $self->{root};

    make_path("$dir/logs", "$dir/html", "$dir/temp");
    spew("$dir/$_", $o{files}{$_}) for keys %{$o{files} // {}};

    my $load = sub {
        return join '', map {
            'load_module ' . (m{/} ? $_ : has_module($_) // die "no module $_") . ";\n"
        } @{$_[0] // []};
    };

    my $with = $o{module} // 1;
    my $zone = $o{zone} // 1;
    my $connections = $o{connections} // 512;
    my $text = $o{conf} // join "\n",
        $load->($o{modules}), $with ? load_module() : (),
        $load->($o{modules_after}),
        $> == 0 ? 'user ' . ($o{user} // 'root') . ';' : (),
        'worker_processes ' . ($o{workers} // 1) . ';',
        $o{connections} ? 'worker_rlimit_nofile 20000;' : (),
        'env ASAN_OPTIONS;', 'env UBSAN_OPTIONS;',
        $o{main} // '',
        "events { worker_connections $connections; }",
        'http {',
        'default_type text/plain;',
        map("${_}_temp_path $dir/temp/$_;",
            qw(client_body proxy fastcgi scgi uwsgi)),
        ($o{http} // '') =~ /\baccess_log\b/ ? () : 'access_log off;',
        !$with || !$zone ? () : $zone eq 1 ? 'idempotency_zone zone=z:16m;' : $zone,
        $o{http} // '',
        defined $o{server}
            ? ('server {', 'listen 127.0.0.1:$TEST_NGINX_PORT;',
               'server_name localhost;', $o{server}, '}') : (),
        "}\n";

    my %env = (PORT => $self->port(0), ROOT => $dir);

    $text =~ s{\$TEST_NGINX_(\w+)}{
        my $v = $1;
        $v =~ /^RAND_PORT_(\d+)$/ ? $self->port($1)
            : $env{$v} // $ENV{"TEST_NGINX_$v"}
            // die "unknown \$TEST_NGINX_$v";
    }ge;

    $text = stored($text, "$dir/store", $o{user}) if !$self->{as_is};

    spew("$dir/nginx.conf", $text);

    return $text;
}


# TEST_IDEMPOTENCY_STORE: what stands behind each zone of a test that says nothing
# of that itself. A zone's name, its directory and the workers' user become further
# parameters. "late": nothing, but the store is one that answers late, a module of
# its own. Behind a zone whose line ends with "# memory alone" there is nothing: it
# is to be full, and what is kept elsewhere as well leaves memory.

my %stores = (
    '' => sub { '' },
    late => sub { '' },
    map({ my $sync = $_; $sync => sub { in_file($sync, @_) } } qw(strict batched)),
    redis => \&in_redis,
);

sub stored {
    my ($text, $dir, $user) = @_;

    my $store = $ENV{TEST_IDEMPOTENCY_STORE} // '';
    my $more = $stores{$store} // die "TEST_IDEMPOTENCY_STORE: no $store";

    # what a test takes for granted is not so over each of them; servers may have
    # one of their own

    my $http = $text =~ s/\bserver\s*(\{(?:[^{}]|(?1))*\})//gr;
    my $also = $store eq 'redis' && $http !~ /^\s*idempotency_max_response/m
               ? ' idempotency_max_response 1m;' : '';

    my $alone = qr/ *# memory alone/;

    return $text =~ s{^((?:[^#\n]*[\s;])?idempotency_zone\s[^;]*?)(\s*;)(?!$alone)}{
        my ($zone, $end) = ($1, $2);
        my ($name) = $zone =~ /\szone=([\w-]+):/;

        my ($parameters, $blocks) = !defined $name || $zone =~ /[\s"'](?:state|redis)=/
                                    ? () : $more->($name, $dir, $user);

        $zone . ($parameters // '') . $end
        . (defined $blocks ? $blocks . substr $also, 0, length $also, '' : '');
    }gmer;
}


sub in_file {
    my ($sync, $name, $dir, $user) = @_;

    make_path($dir);
    chown scalar getpwnam($user), -1, $dir if $user && $> == 0;

    return " state=$dir/$name.db sync=$sync";
}


# One for all zones of a test: each has a prefix of its own.

my $redis;

sub in_redis {
    my ($name, $dir) = @_;

    if (!$redis) {
        require Redis;
        $redis = Redis->new(args => [qw(--appendonly yes --appendfsync no)]);
    }

    return (" redis=of_$name",
            " idempotency_redis of_$name { server unix:" . $redis->path . '; '
            . "prefix \"$dir:\"; timeout 5s; }");
}


# ... or nothing: a test, or what it is about, is not for another store.

sub in_memory { return ($ENV{TEST_IDEMPOTENCY_STORE} // '') =~ /^(?:late)?$/ }

sub answers_late { return ($ENV{TEST_IDEMPOTENCY_STORE} // '') eq 'late' }

# ... or others may be at it, whom nobody sees.

sub shared { return ($ENV{TEST_IDEMPOTENCY_STORE} // '') eq 'redis' }


# where nginx logs until it has read its configuration: it can be told since
# 1.19.5

my $takes_log;

sub takes_log { return $takes_log //= `$binary -h 2>&1` =~ /-e filename/ || 0 }


sub command {
    my ($self, %o) = @_;

    my $level = $o{log_level} // $ENV{TEST_NGINX_LOG_LEVEL} // 'info';
    my $log = "$self->{root}/logs/error.log";

    return ($binary, takes_log() ? ('-e', $log) : (),
            '-p', "$self->{root}/", '-c', "$self->{root}/nginx.conf",
            '-g', "pid $self->{root}/nginx.pid; daemon " . ($o{daemon} // 'off')
                  . "; error_log $log $level;");
}


my $instances = 0;

sub instance {
    return bless { root => "$tmp/" . ++$instances, ports => {}, @_ },
                 'Idempotency::Nginx';
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
        unshift @cmd, @{$o{slowed} // []};

        my $pid = $self->{pid} = process(sub {
            open STDOUT, '>>', "$self->{root}/logs/stderr.log";
            open STDERR, '>&', \*STDOUT;
            exec @cmd or POSIX::_exit(127);
        });

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

        die "nginx did not start:\n$log"
            if $try == 5 || $log !~ /Address already in use/;
    }
}


sub config_test {
    my (%o) = @_;

    my $self = instance(%o);
    my $conf = config($self, %o);
    my ($ok, $said) = output(command($self, %o), '-t');

    # the path of a test's directory is of no interest to anybody
    return ($ok, $said =~ s/\Q$self->{root}\E/ROOT/gr, $conf);
}


# What may not stand in an error log. Clients that just close a TLS connection are
# critical to nginx before 1.21.0 with OpenSSL 3.

our $bad = qr/\[(?:alert|emerg|crit)\](?!.*unexpected\ eof\ while\ reading)
             |Sanitizer|runtime error:|exited\ on\ signal/x;

# What a file is said to be while processes stand still.

our $still = qr/is unavailable: (?:what was written is not on disk for 2 s|an operation takes longer than a second)/;


package Idempotency::Nginx;

use strict;
use warnings;

use POSIX qw(WNOHANG);

sub root { return $_[0]{root} }

sub pid { return $_[0]{pid} }

sub port { return $_[0]{ports}{$_[1] // 0} //= Idempotency::free_port() }

sub slurp { return Idempotency::slurp("$_[0]{root}/$_[1]") }

sub log { return $_[0]->slurp('logs/error.log') }

sub access_log { return $_[0]->slurp('logs/access.log') }

sub signal { return kill $_[1], $_[0]{pid} }


sub wait_log {
    my ($self, $re) = @_;

    return Idempotency::until_true(sub { $self->log =~ $re });
}


# The processes that the master has now and that are not on their way out.

sub workers {
    my ($self) = @_;

    return grep {
        $self->{slowed} || Idempotency::slurp("/proc/$_/cmdline")
            =~ /^(?:nginx|angie): worker process\b(?!.*shutting)/
    } split ' ', Idempotency::slurp("/proc/$self->{pid}/task/$self->{pid}/children");
}


# As its workers say: the latest of each counts.

sub heard {
    my ($self) = @_;

    return !Idempotency::answers_late() || Idempotency::until_true(sub {
        my %said = $self->log =~ / (\d+)#\d+: idempotency late: (all|some) are/g;
        return !grep { ($said{$_} // 'all') ne 'all' && kill 0, $_ } keys %said;
    });
}


sub racing {
    my ($self, $start, %o) = @_;

    my $by = $o{by} // $self->connect;
    my $races = sub {
        $by->send(Idempotency::message('GET', '/figures/zones/z'));
        my $told = $by->response('GET')->{body};
        return $told =~ /"races":(\d+)/ ? $1 : die "no races in \"$told\"\n";
    };

    my $before = $races->();
    my @c = $start->();
    my $count = $before + ($o{count} // @c);

    Idempotency::until_true(sub { $races->() >= $count }) or die "no race\n";

    return @c;
}


sub reload {
    my ($self, %o) = @_;

    if (%o) {
        $self->{$_} = $o{$_} for keys %o;
        Idempotency::config($self, %$self);
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

    return $self->ended($gone);
}


# The test may have planned or finished already: speaks up only when needed.

sub ended {
    my ($self, $gone) = @_;

    local $Test::Builder::Level = $Test::Builder::Level + 1;

    # a stop tries for half a second to deliver what a store has not, which on a busy
    # machine, or of one that a test has killed, may be too short: see quit.t

    my @lines = grep { $_ =~ $Idempotency::bad && !/outcomes (?:were not delivered|are not in)/
                       && !($self->{allow} && $_ =~ $self->{allow}) }
                split /\n/, $self->log . $self->slurp('logs/stderr.log');

    # nor is it a fault that a machine stood still: see hung.t

    my $good = $gone && !grep $_ !~ $Idempotency::still, @lines;

    if (!$good) {
        Test::More::fail($gone ? 'nothing bad in the error log'
                               : 'nginx stops when told to');
        $? = 1;
    }

    Test::More::diag($_) for @lines > 20 ? @lines[0 .. 19] : @lines;

    return $good;
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

    my (undef, $body) = Idempotency::output(
        'curl', '-q', '-s', '--noproxy', '*', '-D', "$self->{root}/curl.head",
        '--max-time', Idempotency::patience(), @args);
    my $head = $self->slurp('curl.head');

    # interim responses, the head, and, behind an empty line, trailers
    my @parts = split /\r\n\r\n/, $head;
    my @interim;

    push @interim, shift @parts while @parts && $parts[0] =~ m{^HTTP/\S+ 1\d\d};

    my $r = Idempotency::Response->new(@parts ? shift(@parts) . "\r\n\r\n" : ());

    $r->{trailers} = [ map { split /\r\n/ } @parts ];
    $r->{interim} = \@interim;
    $r->{body} = $body;
    $r->{raw} = $head . $body;

    return $r;
}


# --- blocks -----------------------------------------------------------------

package Idempotency;

# Test::Nginx::Socket reads these when it is loaded. Returns a directory.

sub blocks {
    my $port = free_port();
    my $log = "$tmp/error.log";

    start_backend();

    # It says -e to an nginx that may not know it, and to which log: all goes
    # to one that outlives each server, what is said before it is open as well.
    spew("$tmp/nginx", "#!/bin/sh\n"
         . "case \$1 in -e) shift 2 ;; -[vV]) exec $binary \$1 ;; esac\n"
         . "exec $binary " . (takes_log() ? "-e $log " : '') . "\"\$@\" 2>>$log\n");
    chmod 0755, "$tmp/nginx";

    $ENV{TEST_NGINX_BINARY} = "$tmp/nginx";
    $ENV{TEST_NGINX_CLIENT_PORT} = $port;
    $ENV{TEST_NGINX_SERVER_PORT} = "127.0.0.1:$port";
    $ENV{TEST_NGINX_SERVROOT} = "$tmp/servroot";

    return $tmp;
}


1;
