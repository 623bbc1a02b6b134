#!/usr/bin/perl

# docs/requests.md: the client may leave, the operation goes on. It
# is carried through and recorded, and a retry finds all of it.

use lib 't/lib';
use Idempotency;
use Stress;

use Socket qw(SOL_SOCKET SO_RCVBUF pack_sockaddr_in inet_aton);

# Where requests go, by whose means. The relays tell connections apart, and
# one of them speaks what grpc_pass does.

my %pass = (
    proxy   => 'proxy_pass http://relay; proxy_http_version 1.1;
                proxy_set_header Connection "";',
    grpc    => 'grpc_pass grpc://grpc_relay;',
    map({ my $p = $_;
          $p => join ' ', "${p}_pass \$TEST_NGINX_\U$p\E;",
                          map { "${p}_param $_;" }
                          'QUERY_STRING $query_string',
                          'REQUEST_METHOD $request_method',
                          'REQUEST_URI $request_uri',
                          'CONTENT_LENGTH $content_length';
        } qw(fastcgi scgi uwsgi)),
);

# what is asked for by name has no say here; gRPC has neither

my %at = map {
    my ($p, $off) = ($_, "${_}_ignore_client_abort off;");

    $p eq 'grpc' ? ('grpc/on' => $pass{grpc})
    : has_directive($off) ? ("$p/on" => "$off $pass{$p}",
                             "$p/off" => "$off ${p}_buffering off; $pass{$p}")
    : ();
} keys %pass;

my $locations = <<'EOC' . join '', map { "location /$_ { $at{$_} }\n" } keys %at;
    idempotency zone=z;
    idempotency_max_response 4m;
    idempotency_wait_timeout 10m;
EOC

sub start_nginx {
    my ($listen, $more, $servers) = @_;

    return nginx(zone => 0, http => <<'EOC'
        idempotency_zone zone=z:64m;
        log_format result '$request_uri $status $idempotency_status';
        access_log $TEST_NGINX_ROOT/logs/access.log result;

        upstream relay { server 127.0.0.1:$TEST_NGINX_RAND_PORT_2; keepalive 8; }
        upstream grpc_relay { server 127.0.0.1:$TEST_NGINX_RAND_PORT_3;
                              keepalive 8; }
        server {
            listen 127.0.0.1:$TEST_NGINX_RAND_PORT_2;
            listen 127.0.0.1:$TEST_NGINX_RAND_PORT_3 http2;
            access_log off;
            add_header X-Conn $connection always;
            location / { proxy_pass http://$TEST_NGINX_BACKEND;
                         proxy_http_version 1.1;
                         proxy_set_header Connection ""; }
        }
EOC
        . crowd("$more\n$locations", $listen) . $servers);
}

my $n = start_nginx('', '', '');
my $count = 0;


# A response that is recorded as a whole, and was executed once.

sub recorded {
    my ($name, $id, $size, @r) = @_;

    local $Test::Builder::Level = $Test::Builder::Level + 1;

    is(join(', ', map({ (told($_) =~ s/WAITED/REPLAYED/r)
                        . ($_->replayed && $_->{body} eq pattern($size, 1)
                           ? ' all of it' : ' ' . problem($_)) } @r),
                  executions($id)),
       join(', ', ('200 REPLAYED all of it') x @r, 1), $name) or diag $n->log;
}


# --- ways to leave ----------------------------------------------------------

my %leave = (
    'HTTP/1.1, FIN'         => sub { $_[0]->close },
    'HTTP/1.1, RST'         => sub { $_[0]->reset },
    'HTTP/2, RST_STREAM'    => sub { $_[0]->reset_stream($_[1]) },
    'HTTP/2, FIN'           => sub { $_[0]->close },
    'HTTP/2, RST'           => sub { $_[0]->reset },
);

# Starts a request; returns what a way to leave takes.

sub begin {
    my ($how, $uri, @o) = @_;

    return $n->start('POST', $uri, @o) if $how =~ m{^HTTP/1};

    my $h = h2($n);

    return ($h, $h->request('POST', $uri, @o));
}


sub some_body {
    my ($c, $s) = @_;

    return $c->until_stream($s, sub { length $_[0]{body} }) if defined $s;

    return $c->want(sub { $c->{buf} =~ /\r\n\r\n./s ? 1 : undef });
}


# A response in chunks or of unknown length has no length to be whole by.

for (map({ [ $_, '' ] } sort keys %at), map { [ 'proxy/on', "&te=$_" ] }
     qw(chunked close))
{
    my ($at, $te) = @$_;

    for my $how (sort keys %leave) {
        for my $gate (1, 'body') {
            my $name = "$at, $how, gate $gate$te";
            my $id = 'gone' . ++$count;
            my $uri = "/$at?id=$id&size=200000&gate=$gate$te";
            my @o = (key => $id, body => 'b');

            my @c = begin($how, $uri, @o);
            held($id);
            some_body(@c) if $gate eq 'body';
            my $waits = $n->start('POST', $uri, @o);
            $leave{$how}->(@c);
            go($id);

            my @r = ($waits->response, $n->post($uri, @o));
            recorded($name, $id, 200000, @r);

            $c[0]->close if $how =~ /STREAM/;
            $waits->close;

            next unless $at =~ /^(?:proxy|grpc)/;

            my $next = $n->post("/$at?id=$id", key => "$id-next");
            is($next->header('X-Conn'), $r[1]->header('X-Conn'),
               "... the upstream's connection is used again");
        }
    }
}


# What breaks off behind the client's back is no whole response.

for (['broken off', 'size=200000&cut=1000', '409 NOT_KEPT not_kept'],
     ['never came', 'rst=1', '502 REPLAYED no problem'])
{
    my ($what, $query, $is) = @$_;
    my $id = 'gone' . ++$count;
    my @m = (POST => "/proxy/on?id=$id&gate=1&$query", key => $id, body => 'b');
    my $c = $n->start(@m);

    held($id);
    $c->close;
    go($id);

    my $r = $n->request(@m);
    is((told($r) =~ s/WAITED/REPLAYED/r) . ' ' . problem($r), $is,
       "the client gone, the response $what");
    is(executions($id), 1, '... executed once');
}


# --- during the upload ------------------------------------------------------

# Nothing was asked for yet, so nothing is bound.

for my $at (grep m{/on}, sort keys %at) {
    for my $how (sort(keys %leave), 'HTTP/1.1, FIN, chunked') {
        my $id = 'upload' . ++$count;
        my $uri = "/$at?id=$id";
        my @o = (key => $id, body => 'whole');
        my @c;

        if ($how =~ /HTTP\/2/) {
            @c = begin($how, $uri, key => $id, body => 'who', open => 1);

        } else {
            my $m = message('POST', $uri, @o, chunked => !!($how =~ /chunked/));
            @c = $n->connect;
            $c[0]->send(substr $m, 0, length($m) - 4);
        }

        # a reset may take with it what was not read, or accepted, before
        until_true { !Stress::under_way($n) };
        $leave{$how =~ s/, chunked//r}->(@c);

        ok(until_true { $n->access_log =~ /id=$id 4\d\d/ },
           "$at, $how: gone during the upload");
        is(executions($id), 0, '... not executed');
        is(told($n->post($uri, @o)) . ' ' . executions($id), '200 NEW 1',
           '... nothing was bound, and now it is executed');
    }
}

$n->stop;


# --- stalled ----------------------------------------------------------------

# It reads nothing, and the kernel takes little for it. Who asks again reads, and
# has its time.

my $late = 'location /late { send_timeout 10m;
                             proxy_pass http://$TEST_NGINX_BACKEND; }
            location /late/unbuffered { send_timeout 10m; proxy_buffering off;
                                        proxy_pass http://$TEST_NGINX_BACKEND; }
            location /late/memory { send_timeout 10m; proxy_max_temp_file_size 0;
                                    proxy_pass http://$TEST_NGINX_BACKEND; }';

$n = start_nginx('sndbuf=8k rcvbuf=8k', "send_timeout 300ms;\n$late",
                 <<'EOC' . "$late\n$locations}");
    server {
        listen 127.0.0.1:$TEST_NGINX_RAND_PORT_4;
        server_name localhost;
        add_header X-Status $idempotency_status always;
EOC

# Starts a request of a client that reads none of its response, or little.

sub stalled {
    my ($how, @m) = @_;

    if ($how eq 'HTTP/2') {
        my $h = h2($n, window => 10000);
        $h->request(@m);
        return $h;
    }

    socket(my $s, Socket::PF_INET(), Socket::SOCK_STREAM(), 0) or die $!;
    setsockopt $s, SOL_SOCKET, SO_RCVBUF, 4096;
    CORE::connect($s, pack_sockaddr_in($n->port, inet_aton('127.0.0.1')))
        or die $!;
    syswrite $s, message(@m);

    return $s;
}

# What is known is known, however long such a client takes: the whole response,
# if the upstream is read ahead of it, or that there is none.

for (map({ my $at = $_; map { [ $at, $_, '' ] } 'HTTP/1.1', 'HTTP/2' }
         sort keys %at),
     [ 'late', 'HTTP/1.1', '' ], [ 'late', 'HTTP/1.1', '&cut=1400000' ])
{
    my ($at, $how, $cut) = @$_;
    my $id = 'stall' . ++$count;
    my @m = (POST => "/$at?id=$id&size=1500000$cut", key => $id, body => 'b');
    my $client = stalled($how, @m);

    ok(until_true { executions($id) }, "$at, $how stalled$cut: it is executed");

    my $r = $n->request(@m, port => $n->port(4));

    if ($cut) {
        is(told($r) . ' ' . executions($id), '409 NOT_KEPT 1',
           '... and known to be broken off');

    } else {
        recorded('... carried through', $id, 1500000, $r);
    }
}

# ... and when it leaves, the upstream no longer waits for it.

for (['late/unbuffered', ''], ['late/memory', ''], ['proxy/off', '&gate=body']) {
    my ($at, $gate) = @$_;

    for my $leaves (sort grep /2/, keys %leave) {
        my $id = 'leaves' . ++$count;
        my @m = (POST => "/$at?id=$id&size=1500000$gate", key => $id, body => 'b');
        my $client = stalled('HTTP/2', @m);

        $client->header(1);
        $leave{$leaves}->($client, 1);
        $n->wait_log(qr/its request goes on[^\n]*$id&/);

        if ($gate) {
            select undef, undef, undef, 0.6;    # send_timeout is over
            go($id);
        }

        recorded("/$at, $leaves of a stalled client", $id, 1500000,
                 $n->request(@m, port => $n->port(4)));
    }
}

# ... and it may read all of it later.

{
    my @m = (POST => '/late?id=later&size=1500000', key => 'later', body => 'b');
    my $c = $n->start(@m);

    until_true { executions('later') };

    my $r = $n->request(@m, port => $n->port(4));
    recorded('recorded before its client has read it', 'later', 1500000, $r);
    same_replay($c->response, $r, '... which reads the same, later');
}


# --- upstreams of other kinds -------------------------------------------------

$n = nginx(http => <<'EOC', server => <<'EOD');
    idempotency zone=z;
    proxy_cache_path $TEST_NGINX_ROOT/cache keys_zone=cache:1m;
    add_header X-Status $idempotency_status always;
EOC
    idempotency_in_progress reject;
    location /old { proxy_pass http://$TEST_NGINX_BACKEND; }
    location /variable { set $to $TEST_NGINX_BACKEND; proxy_pass http://$to; }
    location /cached {
        proxy_cache cache;
        proxy_cache_methods POST;
        proxy_cache_key $request_uri;
        proxy_cache_valid any 1h;
        proxy_pass http://$TEST_NGINX_BACKEND;
    }
EOD

for my $at (qw(old variable cached)) {
    my @m = ("/$at?id=$at&gate=1&status=201", key => $at, body => 'b');
    my $c = $n->start(POST => @m);

    held($at);
    $c->reset;
    is(told($n->post(@m)), '409 IN_PROGRESS', "$at: still pending");
    go($at);

    my $r;
    until_true { $r = $n->post(@m); told($r) ne '409 IN_PROGRESS' };
    is(told($r) . ' ' . executions($at), '201 REPLAYED 1',
       '... carried through and recorded');
}

$n->stop;


# --- so many, and no more -----------------------------------------------------

# Of 512 connections a worker carries 64 requests on whose clients have left, and
# of one client, told by idempotency_quota's value, 8. Whoever leaves beyond that
# is given up as nginx does by itself: the upstream is left, too.

$n = nginx(http => <<'EOC' . crowd(<<'EOC2'), connections => 512);
    access_log off;
EOC
    idempotency zone=z;
    idempotency_in_progress reject;
    location / { proxy_pass http://$TEST_NGINX_BACKEND; }
    location /by/ { idempotency_quota 10000 $http_x_client; proxy_pass http://$TEST_NGINX_BACKEND; }
    location /unbuffered { proxy_buffering off; proxy_pass http://$TEST_NGINX_BACKEND; }
EOC2

sub abandoned {
    my ($z) = $n->get('/figures/metrics')->{body} =~ /^nginx_idempotency_abandoned_total\{zone="z"\} (\d+)$/m;
    return $z;
}

# Requests of a client that leaves them, by their ids.

sub leave {
    my ($how, $uri, $client, $requests) = @_;
    my (@left, $h);

    for (1 .. $requests) {
        my $id = 'many' . ++$count;
        my @m = (POST => $uri =~ s/ID/$id/r, key => $id, body => 'b', headers => ["X-Client: $client"]);

        $h //= h2($n) if $how eq 'HTTP/2';
        my $c = $h // $n->start(@m);
        my $s = $h ? $h->request(@m) : undef;

        held($id);
        $s ? $h->reset_stream($s) : $how eq 'RST' ? $c->reset : $c->close;

        push @left, { id => $id, m => \@m, c => $c };
    }

    return @left;
}

# What a retry of each gets, and how many get that.

sub retries {
    my %n;

    $n{told($n->request(@{$_->{m}}))}++ for @_;

    return \%n;
}

# So many are carried on, and the rest is in doubt; each is executed once.

sub become {
    my ($name, $carried, @left) = @_;

    my %rest = @left > $carried ? ('409 IN_DOUBT' => @left - $carried) : ();

    is_deeply(retries(@left), { '409 IN_PROGRESS' => $carried, %rest }, "$name, the rest is in doubt");
    go($_->{id}) for @left;

    my $is;
    until_true { $is = retries(@left); !$is->{'409 IN_PROGRESS'} };

    is_deeply($is, { '200 REPLAYED' => $carried, %rest }, '... and recorded') or diag $n->log;
    is(scalar(grep { executions($_->{id}) != 1 } @left), 0, '... each executed once');
}

is(abandoned(), 0, 'none was given up yet');

for my $how ('FIN', 'RST', 'HTTP/2') {
    my $before = abandoned();
    my @left = leave($how, '/?id=ID&gate=1', '', 12);

    ok(until_true { abandoned() == $before + 4 }, "$how: of 12 of one address 4 are given up");
    become("... and 8 are carried on", 8, @left);
    $_->{c}->close for grep { $how eq 'HTTP/2' } $left[0];
}

# ... and so it is of those that have begun to answer, where what came so far was
# executed, and is no whole response

for my $at ('/', '/unbuffered') {
    my $before = abandoned();
    my @left = leave('FIN', "$at?id=ID&gate=body&size=3000", '', 10);

    ok(until_true { abandoned() == $before + 2 }, "$at, in the middle of the body: of 10 2 are given up");
    go($_->{id}) for @left;

    my $is;
    until_true { $is = retries(@left); !$is->{'409 IN_PROGRESS'} };
    is_deeply($is, { '200 REPLAYED' => 8, '409 NOT_KEPT' => 2 }, '... 8 are carried on');
}

# Others' have room still, until all is used up: and none of it is lost.

for (1, 2) {
    my $before = abandoned();
    my @left = map { leave('FIN', '/by/?id=ID&gate=1', "c$_", 9) } 1 .. 7;

    ok(until_true { abandoned() == $before + 7 }, 'of 9 of each of 7 clients one is given up');

    push @left, leave('FIN', '/by/?id=ID&gate=1', 'c8', 8), leave('FIN', '/by/?id=ID&gate=1', 'c9', 8);
    ok(until_true { abandoned() == $before + 15 }, 'more than 64 of all of them are too many');

    become('64 are carried on', 64, @left);
}

is(join(' ', $n->log =~ /\[warn\].* requests given up as their clients left, .*: (\d+), .*: (\d+), too many/g), '1 8',
   'the log says so once a minute') or diag $n->log;

$n->stop;


# --- readers of replays -------------------------------------------------------

# A replay may be as large as idempotency_max_response, and be read as slowly as
# send_timeout lets it: what nginx holds for it meanwhile is at most 160 KB for
# each reader, also for one who waited. Whoever reads on has all of it, whatever
# became of the record since.

my $size = 3_000_000;

# memory of its own, without what it has mapped from files
sub held_memory {
    my ($kb) = slurp('/proc/' . ($n->workers)[0] . '/status') =~ /^RssAnon:\s+(\d+) kB/m;
    return $kb;
}

# so many of them, each with the beginning of it: the rest is nginx's
sub readers {
    my ($readers, $waits, $id) = @_;
    my @m = (POST => "/?id=$id&size=$size" . ($waits ? '&gate=1' : ''), key => $id, body => 'b');
    my $first = $n->start(@m);
    my @read;

    $waits ? held($id) : $first->response;

    for (1 .. $readers) {
        my $c = $n->connect(port => $n->port(1));
        setsockopt $c->{sock}, SOL_SOCKET, SO_RCVBUF, 65536;
        $c->send(message(@m));
        push @read, $c;
    }

    if ($waits) {
        go($id);
        $first->response;
    }

    for my $c (@read) {
        $c->want(sub { length $c->{buf} ? 1 : undef });
    }

    return @read;
}

for my $waits (0, 1) {
    my $id = $waits ? 'waits' : 'comes';

    $n = nginx(connections => 512, http => <<'EOC', server => <<'EOD');
    idempotency zone=z;
    idempotency_max_response 4m;
    add_header X-Status $idempotency_status always;
EOC
    listen 127.0.0.1:$TEST_NGINX_RAND_PORT_1 sndbuf=64k;
    send_timeout 1h;
    location / { proxy_pass http://$TEST_NGINX_BACKEND; }
    location /api/ { idempotency off; idempotency_api write=on; }
EOD

    # what all of them have in common is there after the first ones

    my @some = readers(5, $waits, "some-$id");
    my $before = held_memory();
    my @read = readers(50, $waits, $id);
    my $each = (held_memory() - $before) / 50;

    SKIP: {
        skip 'a sanitizer keeps what was freed', 1 if $ENV{ASAN_OPTIONS};
        cmp_ok($each, '<', 160, "who $id and reads slowly holds at most 160 KB, not $size bytes");
    }

    is($n->request('DELETE', '/api/zones/z/records?scope=localhost', key => $id)->{status}, 204,
       '... and when it is forgotten');
    $_->close for @some, splice @read, 3;
    is(scalar(grep { my $r = $_->response; $r->replayed && $r->{body} eq pattern($size, 1) } @read), 3,
       '... has all of it');
}

# ... and so does who was executed, once his response is recorded.

SKIP: {
    skip 'a sanitizer keeps what was freed', 1 if $ENV{ASAN_OPTIONS};

    $n = nginx(connections => 512, zone => 'idempotency_zone zone=z:64m;', server => <<'EOD');
        listen 127.0.0.1:$TEST_NGINX_RAND_PORT_1 sndbuf=64k;
        send_timeout 1h;
        proxy_buffers 4 8k;
        idempotency zone=z;
        location / { proxy_pass http://$TEST_NGINX_BACKEND; }
        location /api/ { idempotency off; idempotency_api; }
EOD

    my $done = sub { $n->get('/api/metrics')->{body} =~ /^nginx_idempotency_records\{.*"done"\} (\d+)/m && $1 };

    # one after the other: what nginx frees is used again
    my $owners = sub {
        return map {
            my $key = 'owner' . ++$count;
            my $was = $done->();
            my $c = $n->connect(port => $n->port(1));

            setsockopt $c->{sock}, SOL_SOCKET, SO_RCVBUF, 65536;
            $c->send(message(POST => "/?id=$key&size=900000", key => $key));
            until_true { $done->() > $was };
            $c;
        } 1 .. $_[0];
    };

    my @some = $owners->(5);
    my $before = held_memory();
    my @c = $owners->(30);

    cmp_ok((held_memory() - $before) / 30, '<', 300, 'who owns and reads slowly does not hold his 900 KB');
}

# Where no file can be had, nobody goes without his response.

{
    my $broken = nginx(allow => qr/\[crit\].*No such file/, server => <<'EOC');
        idempotency zone=z;
        location / {
            client_body_temp_path nowhere;
            proxy_pass http://$TEST_NGINX_BACKEND;
        }
EOC
    my @m = ('/?id=nofile&size=500000', key => 'nofile', body => 'b');

    $broken->post(@m);
    rmdir $broken->root . '/nowhere' or die $!;
    my $r = $broken->post(@m);
    ok($r->replayed && $r->{body} eq pattern(500_000, 1), 'without a file it is sent from memory');
    like($broken->log, qr/\[crit\].*nowhere/, '... and the log says so');
}

done_testing();
