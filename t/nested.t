#!/usr/bin/perl

# docs/guarantees.md, "nginx before itself": a front that passes a request on to
# a server of the same nginx doesn't wait for itself. All else that comes with
# that token waits, whichever way it comes.

use lib 't/lib';
use Idempotency;
use IO::Socket::IP;
use IO::Socket::UNIX;
use Socket qw(SOL_SOCKET SO_RCVBUF);

my $pki = certificate();
my $six = IO::Socket::IP->new(LocalHost => '::1', Listen => 1) ? 1 : 0;

my $n = nginx(workers => 4, http => <<EOC, server => <<'EOC2');
    log_format who '\$server_port \$request_method \$uri \$status '
                   '\$idempotency_status \$idempotency_fence';
    access_log \$TEST_NGINX_ROOT/logs/access.log who;

    idempotency zone=z;
    idempotency_methods POST PUT;
    idempotency_keep any;
    proxy_http_version 1.1;
    proxy_set_header Host localhost;
    proxy_set_header Connection "";

    upstream here { server 127.0.0.1:\$TEST_NGINX_RAND_PORT_1; keepalive 1; }
    upstream backends { server \$TEST_NGINX_BACKEND max_fails=0;
                        server \$TEST_NGINX_BACKEND max_fails=0; }

    # the inner server, by each way to it
    server {
        listen 127.0.0.1:\$TEST_NGINX_RAND_PORT_1 sndbuf=1m;
        listen 127.0.0.1:\$TEST_NGINX_RAND_PORT_2 ssl;
        listen 127.0.0.1:\$TEST_NGINX_RAND_PORT_3 http2;
        @{[ $six ? 'listen [::1]:$TEST_NGINX_RAND_PORT_1;
        listen [::]:$TEST_NGINX_RAND_PORT_4 ipv6only=off;' : '' ]}
        listen unix:\$TEST_NGINX_ROOT/inner;
        server_name localhost;
        ssl_certificate $pki/cert.pem;
        ssl_certificate_key $pki/key.pem;

        set_real_ip_from 127.0.0.0/8;
        real_ip_header X-From;

        proxy_set_header X-Fence \$idempotency_fence;
        proxy_set_header X-From-Port \$realip_remote_port;

        location / { proxy_pass http://\$TEST_NGINX_BACKEND; }
        location /dry { idempotency_dry_run on;
                        proxy_pass http://\$TEST_NGINX_BACKEND; }
        location /reject { idempotency_in_progress reject;
                           proxy_pass http://\$TEST_NGINX_BACKEND; }
        location /twice { proxy_next_upstream error timeout non_idempotent;
                          proxy_pass http://backends; }
        location /again { proxy_pass http://127.0.0.1:\$TEST_NGINX_RAND_PORT_5; }
        location /unix { idempotency_wait_timeout 300ms;
                         proxy_pass http://\$TEST_NGINX_BACKEND; }
        location /sent-on { idempotency off;
                            add_header X-Accel-Redirect /later\$is_args\$args;
                            return 200; }
    }

    # and one behind that
    server {
        listen 127.0.0.1:\$TEST_NGINX_RAND_PORT_5;
        server_name localhost;
        location / { proxy_pass http://\$TEST_NGINX_BACKEND; }
    }
EOC
    listen 127.0.0.1:$TEST_NGINX_RAND_PORT_6 sndbuf=4k;
    add_header X-Status $idempotency_status always;

    location / { proxy_pass http://127.0.0.1:$TEST_NGINX_RAND_PORT_1; }
    location /tls { proxy_pass https://127.0.0.1:$TEST_NGINX_RAND_PORT_2; }
    location /six { proxy_pass http://[::1]:$TEST_NGINX_RAND_PORT_1; }
    location /mapped { proxy_pass http://127.0.0.1:$TEST_NGINX_RAND_PORT_4; }
    location /kept { proxy_pass http://here; }
    location /variable { set $to 127.0.0.1;
                         proxy_pass http://$to:$TEST_NGINX_RAND_PORT_1; }
    location /grpc { grpc_set_header Host localhost;
                     grpc_pass grpc://127.0.0.1:$TEST_NGINX_RAND_PORT_3; }
    location /unix { proxy_pass http://unix:$TEST_NGINX_ROOT/inner; }
    location /rewritten {
        proxy_method PUT;
        proxy_set_body other;
        proxy_set_header Host localhost;
        proxy_set_header Authorization "Bearer front";
        proxy_pass http://127.0.0.1:$TEST_NGINX_RAND_PORT_1/elsewhere;
    }
    location /similar { idempotency_similar reject;
                        proxy_pass http://127.0.0.1:$TEST_NGINX_RAND_PORT_1; }
    location /sent-on { proxy_pass http://here; }
    location /later { proxy_pass http://$TEST_NGINX_BACKEND; }
    location /past { idempotency off; proxy_pass http://here; }
    location /smuggled {
        proxy_buffering off;
        proxy_set_header Host localhost;
        proxy_set_header Connection "";
        proxy_set_header Content-Length 0;
        proxy_set_body "POST /second?id=second HTTP/1.1\r\nHost: localhost\r\nIdempotency-Key: smuggled\r\nContent-Length: 0\r\n\r\n";
        proxy_pass http://127.0.0.1:$TEST_NGINX_RAND_PORT_1;
    }

    location /figures/ { idempotency_api; }
    location = /metrics { idempotency_api; }
EOC2

my %port = map { $_ => $n->port($_) } 0 .. 6;

# what the log says of each that came with this id: "front", "inner" …
my %server = ($port{0} => 'front', $port{6} => 'front', $port{5} => 'third',
              (map { $port{$_} => 'inner' } 1 .. 4), '' => 'inner');

sub logged {
    my ($at, $want) = @_;

    my @lines;

    until_true {
        @lines = map { / (\w+) (\S*) (\d+) (\S+) (\d*)/
                       ? [ $server{(split)[0]} // 'inner', $4 ] : () }
                 grep m{ /\Q$at\E }, split /\n/, $n->access_log;
        @lines >= split ' ', $want;
    } 10;

    return join ' ', sort map "$_->[0]:$_->[1]", @lines;
}

sub statuses {
    my ($at, $want, $name) = @_;

    local $Test::Builder::Level = $Test::Builder::Level + 1;

    is(logged($at, $want), join(' ', sort split ' ', $want), $name);
}


# --- each way ---------------------------------------------------------------

for my $at (qw(plain tls kept variable grpc), $six ? qw(six mapped) : ()) {
    my $uri = "/$at?id=way-$at";
    my @o = (key => "way-$at", body => 'b');

    my $first = $n->post($uri, @o);

    logged($at, 'NEW NESTED');      # gRPC's trailers come behind what the client waits for

    my $second = $n->post($uri, @o);

    is(told($first, $second), '200 NEW, 200 REPLAYED', "by $at: not its own duplicate");
    is(executions("way-$at"), 1, '... executed once');
    statuses($at, 'front:NEW inner:NESTED front:REPLAYED', '... it passed inside');
}

is(scalar(my @said = $n->log =~ /is its own upstream, passed/g), 1 * keys %{{
       map { $_ => 1 } $n->log =~ / (\d+)#\d+: .* its own upstream, passed/g }},
   'a line for each worker and location');


# --- whatever it was rewritten to -------------------------------------------

{
    my @r = map $n->post('/rewritten?id=rewritten', key => 'rewritten', body => 'b',
                         headers => [ 'Authorization: Bearer client' ]), 1 .. 2;

    is(told(@r), '200 NEW, 200 REPLAYED',
       'another method, address, body and sender on its way: the same operation');
    statuses('elsewhere', 'inner:NESTED', '... it passed inside');
}


# --- by how the inner location waits ----------------------------------------

{
    is(told($n->post('/reject?id=reject', key => 'reject')), '200 NEW',
       'it passes where others are refused at once');
    is(told($n->post('/dry?id=dry', key => 'dry')), '200 NEW', '... in a dry run');
    statuses('dry', 'front:NEW inner:NESTED_DRY_RUN', '... which says so');

    is(told($n->post('/similar?id=s1', key => 's1', body => 'same')), '200 NEW',
       'its content is not one just seen');

    my $r = $n->post('/again?id=again', key => 'again');

    is(told($r), '200 NEW', 'through three servers');
    statuses('again', 'front:NEW inner:NESTED third:NESTED', '... it passed two of them');

    my ($fence) = last_request('way-tls') =~ /^X-Fence: (\d+)/m;
    my ($own) = $n->access_log =~ m{POST /tls 200 NEW (\d+)};

    is($fence, $own, 'the fence is its owner\'s');
}


# --- others wait ------------------------------------------------------------

{
    my $uri = '/others?id=others&gate=1';
    my @o = (key => 'others', body => 'b');
    my $owner = $n->start('POST', $uri, @o);

    held('others');

    my ($from) = last_request('others') =~ /^X-From-Port: (\d+)/m;
    my @w = $n->racing(sub {
        ((map { $n->start('POST', $uri, @o) } 1 .. 3),
         (map { $n->start('POST', $uri, @o, port => $port{1}) } 1 .. 3),
         $n->start('POST', $uri, @o, port => $port{1},
                   headers => [ "X-From: 127.0.0.1:$from" ]))
    });

    is(scalar(grep $_->readable, @w), 0,
       'duplicates at the front, straight inside, or with a claimed address, wait');
    go('others');
    is(told($owner->response, map { $_->response } @w[0 .. 2]),
       '200 NEW, 200 WAITED, 200 WAITED, 200 WAITED', '... and get the outcome');
    is(join(' ', map { $_->response->{status} } @w[3 .. 6]), '200 200 200 200',
       '... everywhere');
    is(executions('others'), 1, '... executed once');
    statuses('others', 'inner:NESTED front:NEW ' . 'front:WAITED ' x 3
             . 'inner:WAITED ' x 4, '... one passed');
}

# Two requests through one connection, the first one's answer still on its way.
{
    my $c = $n->connect(port => $port{6});

    setsockopt $c->{sock}, SOL_SOCKET, SO_RCVBUF, 4096;
    $c->send(message('POST', '/smuggled?id=first&size=300000', key => 'smuggled'));

    statuses('second', 'inner:CONFLICT', 'a second one through the same connection');
    is(length $c->response('POST')->{body}, 300000, '... the first one has its answer');
    is(executions('first'), 1, '... which was executed');
    is(executions('second'), 0, '... as the second was not');
}


# --- what becomes of it is the owner's --------------------------------------

{
    my @o = (key => 'says');
    my @r = map $n->post('/says?id=says&h=X-Accel-Idempotency:%20release', @o), 1 .. 2;

    is(told(@r), '200 NEW, 200 NEW', 'the owner hears what the application says of it');
    ok(!$r[0]->has('X-Accel-Idempotency'), '... its client does not');
    is(executions('says'), 2, '... and it was released');

    @r = map $n->request('PUT', '/twice?id=twice&rst=1', key => 'twice'), 1 .. 2;

    is(told(@r), '502 NEW, 502 REPLAYED', 'nginx inside gets no answer');
    is(executions('twice'), 1, '... and does not ask the next one');
}

{
    my $r = $n->post('/unix?id=unix', key => 'unix');

    is(told($r), '409 NEW', 'a unix socket has no ends to be told by');
    is(executions('unix'), 0, '... nothing is executed');
    like($n->log, qr/in_progress, waited in vain \(is this nginx its own upstream\?\), token/,
         '... and the line names the possibility');
}

like($n->get('/metrics')->{body},
     qr/requests_total\{zone="z",result="nested"\} [1-9]/, 'they are counted');

# an old worker has closed its listeners, and goes on as the front
{
    my ($begin, $end) = message(POST => '/rewritten?id=quits', key => 'quits',
                                body => 'b') =~ /\A(.*)(.)\z/s;
    my $c = $n->connect;

    $c->send($begin);
    $n->signal('HUP');
    until_true { 4 <= (() = $n->log =~ /gracefully shutting down/g) };
    $c->send($end);

    is(told($c->response), '200 NEW', 'the front is a worker that quits');
    is(executions('quits'), 1, '... executed once');
}

# A connection that an answer came back by is kept, and is somebody else's while
# the owner is held elsewhere. One worker has them all.
{
    ok($n->reload(workers => 1), 'one worker');
    $n->post('/kept?id=warm', key => 'warm');

    my $owner = $n->start('POST', '/sent-on?id=by&gate=1', key => 'by');

    held('by');

    is($n->post('/past?id=by', key => 'by')->{status}, 409,
       'what comes through a kept connection is somebody else\'s');
    go('by');
    is($owner->response->{status}, 200, '... while the owner is held elsewhere');
    is(executions('by'), 1, '... executed once');
}

ok($n->stop, 'nginx stops in good order');

done_testing();
