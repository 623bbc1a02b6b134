#!/usr/bin/perl

# What a gRPC service says comes last, in trailers: a response without them is
# none, and what they say counts.

use lib 't/lib';
use Idempotency;
use Stress ();

my ($ok) = config_test(module => 0, http =>
    'server { listen 127.0.0.1:$TEST_NGINX_RAND_PORT_1 http2;
     location / { grpc_pass grpc://$TEST_NGINX_BACKEND; } }');

plan(skip_all => 'nginx without grpc') unless $ok;


# --- services: each a list of frames, on a port of its own ------------------

sub frame {
    my ($type, $flags, $payload) = @_;

    return substr(pack('N', length $payload), 1)
           . pack('CCN', $type, $flags, 1) . $payload;
}

my ($END, $WHOLE) = (1, 4);

sub lines { return join '', map { pack 'C C/a C/a', 0, split /: / } @_ }
sub head { return frame(1, $WHOLE, "\x88" . lines(@_)) }
sub only { return frame(1, $WHOLE | $END, "\x88" . lines(@_)) }
sub tail { return frame(1, $WHOLE | $END, lines(@_)) }

my $type = 'content-type: application/grpc';
my $length = 'content-length: 5';
my $status = 'grpc-status';
my $says = 'x-accel-idempotency';
my $hello = frame(0, 0, 'hello');
my $last = frame(0, $END, 'hello');
my $reset = frame(3, 0, pack 'N', 2);

# what a repeat gets, and what the service sends

my %service = (
    good      => [ 'again', head($type), $hello, tail("$status: 0", 'x-other: b') ],
    length    => [ 'again', head($type, $length), $hello,
                   tail("$status: 0", 'x-other: b') ],
    only      => [ 'again', only($type, "$status: 3") ],
    plain     => [ 'again', head('content-type: text/plain'), $last ],
    13        => [ 'again', head($type), $hello, tail("$status: 13") ],

    # what has no end
    closed    => [ 'not_kept', head($type, $length), $hello, 'taken', 'close' ],
    reset     => [ 'not_kept', head($type, $length), $hello, 'taken', $reset ],
    'closed-any' => [ 'not_kept', head($type), $hello, 'taken', 'close' ],
    'closed-at-once' => [ 'not_kept', head($type, $length), $hello, 'close' ],
    'reset-at-once' => [ 'not_kept', head($type, $length), $hello, $reset ],
    none      => [ 'not_kept', head($type), $last ],
    'none-length' => [ 'not_kept', head($type, $length), $last ],
    'none-proto' => [ 'not_kept', head("$type+proto"), $last ],

    # what says so itself
    release   => [ 'released', head($type), $hello,
                   tail("$status: 0", "$says: release") ],
    'release-length' => [ 'released', head($type, $length), $hello,
                          tail("$status: 0", "$says: release") ],
    'keep-14' => [ 'again', head($type, "$says: release"), $hello,
                   tail("$status: 14", "$says: keep") ],
    14        => [ 'released', head($type), $hello, tail("$status: 14") ],
    '14-only' => [ 'released', only($type, "$status: 14") ],

    # with idempotency_max_response 0, too
    tokens    => [ 'not_kept', head($type), tail("$status: 0") ],
    'tokens-14' => [ 'released', head($type), tail("$status: 14") ],
);

my (%port, %count);

for my $name (keys %service) {
    my $listen = IO::Socket::INET->new(Listen => 16, LocalAddr => '127.0.0.1')
        or die $!;

    $port{$name} = $listen->sockport;
    pipe($count{$name}, my $counter) or die $!;
    $count{$name}->blocking(0);

    child(sub { serve($listen, $counter, @{$service{$name}}) });
}

sub serve {
    my ($listen, $counter, $is, @frames) = @_;

    while (my $c = $listen->accept) {
        my ($buf, $close) = ('', 0);

        # the preface, then frames until the request has ended
        while (sysread $c, $buf, 65536, length $buf) {
            my $at = 24;
            my $ended = 0;

            while (length $buf >= $at + 9) {
                my ($len, $type, $flags)
                    = unpack 'NCC', "\0" . substr $buf, $at, 5;
                last if length $buf < $at + 9 + $len;
                $ended = 1 if $type <= 1 && $flags & 1;
                $at += 9 + $len;
            }

            last if $ended;
        }

        syswrite $counter, '.';
        syswrite $c, substr(pack('N', 0), 1) . pack 'CCN', 4, 0, 0;

        for my $f (@frames) {
            $close = 1, last if $f eq 'close';
            taken($c), next if $f eq 'taken';
            syswrite $c, $f;
        }

        # nginx closes, or has closed
        1 while !$close && sysread $c, $buf, 65536;
        close $c;
    }
}

# nginx answers a ping when it has taken all that came before it

sub taken {
    my ($c) = @_;
    my $in = '';

    syswrite $c, substr(pack('N', 8), 1) . pack('CCN', 6, 0, 0) . 'so far ?';
    1 until $in =~ /\x06\x01\0{4}so far \?/ || !sysread $c, $in, 65536, length $in;
}


# --- nginx ------------------------------------------------------------------

my $n = nginx(http => <<'EOC' . <<EOC2 . '}');
    access_log $TEST_NGINX_ROOT/logs/access.log;
    server {
        listen 127.0.0.1:$TEST_NGINX_RAND_PORT_1 http2;
        idempotency zone=z;
        idempotency_in_progress reject;
EOC
    @{[ map { "location /$_/ { grpc_pass grpc://127.0.0.1:$port{$_};"
              . (/^tokens/ ? ' idempotency_max_response 0;' : '') . " }\n" }
        keys %service ]}
    location /unprotected/ {
        idempotency_methods PUT;
        grpc_pass grpc://127.0.0.1:$port{release};
    }
EOC2

# A client may have all of its length before the trailers are there: it is over
# when nginx says so.

my $asked = 0;

sub ask {
    my ($at) = @_;

    my $r = $n->curl('--http2-prior-knowledge', '-H', 'TE: trailers',
                     '-H', 'Content-Type: application/grpc',
                     '-H', "Idempotency-Key: $at", '--data-binary', 'body',
                     'http://127.0.0.1:' . $n->port(1) . "/$at/M");

    $asked++;
    until_true { $asked <= (() = $n->access_log =~ /\n/g) };

    return $r;
}

my %told = (again => '200 again', not_kept => '409 not_kept', released => '200');

for my $name (sort keys %service) {
    my $is = $service{$name}[0];
    my @r = map { ask($name) } 1 .. 3;

    # of what broke off, a client makes what it can
    is($r[0]{status}, 200, "$name: passes") unless $name =~ /closed|reset/;
    is(join(' ', $_->{status}, $_->replayed ? 'again' : (),
            $_->{body} =~ /(not_kept)/), $told{$is}, "$name: $is") for @r[1, 2];

    # each execution has left a dot
    is(sysread($count{$name}, my $dots, 1000), $is eq 'released' ? 3 : 1,
       "$name: executed");
    ok(!grep(/x-accel/i, @{$r[0]{lines}}, @{$r[0]{trailers}}),
       "$name: what it says for us stays here");

    is_deeply([ @{$r[1]}{qw(body trailers)} ], [ @{$r[0]}{qw(body trailers)} ],
              "$name: the same, and trailers") if $is eq 'again';
}

# nor is it seen by those who have nothing to keep

my $r = ask('unprotected');
is($r->{status}, 200, 'a method that is not protected: passes');
ok(!grep(/x-accel/i, @{$r->{lines}}, @{$r->{trailers}}),
   'a method that is not protected: the line is hidden');


# --- nginx as the service, before the backend that counts -------------------

my $pass = 'grpc_pass grpc://127.0.0.1:$TEST_NGINX_RAND_PORT_2;';
my $g = nginx(http => <<'EOC' . <<"EOD");
    server {
        listen 127.0.0.1:$TEST_NGINX_RAND_PORT_2 http2;
        location / {
            proxy_pass http://$TEST_NGINX_BACKEND;
            add_trailer grpc-status $arg_grpc always;
            add_trailer grpc-message "it is $arg_id" always;
            add_trailer x-many one always;
            add_trailer x-many two always;
        }
    }
EOC
    server {
        listen 127.0.0.1:\$TEST_NGINX_RAND_PORT_1 http2;
        listen 127.0.0.1:\$TEST_NGINX_PORT;
        idempotency zone=z;
        location /s { $pass }
        location /any { idempotency_keep any; $pass }
        location /2xx { idempotency_keep 2xx; $pass }
    }
EOD

sub by_curl {
    my ($id, $query, $body, $at) = @_;

    return $g->curl('--http2-prior-knowledge', '-H', 'TE: trailers',
                    '-H', 'Content-Type: application/grpc',
                    '-H', "Idempotency-Key: $id", '--data-binary', $body,
                    'http://127.0.0.1:' . $g->port(1)
                    . ($at // '/s') . "?id=$id&ct=application/grpc&te=close&$query");
}

# grpc-status counts as a status does: in the trailers, and in the header
for my $code (0 .. 17) {
    my $released = grep { $code == $_ } 7, 8, 14, 16;

    for (['/s', "grpc=$code", $released], ['/any', "grpc=$code", 0],
         ['/2xx', "grpc=$code", 0],
         ['/s', "grpc=0&h=Grpc-Status:%20$code", $released])
    {
        my ($at, $query, $free) = @$_;
        my $id = "$at-$query" =~ s/\W+/-/gr;

        by_curl($id, "$query&size=30", 'b', $at) for 1, 2;
        is(executions($id), $free ? 2 : 1,
           "$at, $query: " . ($free ? 'released' : 'an outcome'));
    }
}

for (['some', 'grpc=0&size=300'], ['empty', 'grpc=5&size=0'],
     ['large', 'grpc=0&size=100000'])
{
    my ($id, $query) = @$_;
    my $first = by_curl($id, $query, 'body');
    my @lines = (@{$first->{trailers}}, @{$first->{lines}});

    is("$first->{status} " . grep(/^(?:grpc-status: \d$|x-many: )/, @lines),
       '200 3', "$id: passes, with its status and all trailers");
    same_replay($first, by_curl($id, $query, 'body'), "$id: replay $_") for 1, 2;
    is(by_curl($id, $query, 'other')->{status} . ' ' . executions($id), '409 1',
       "$id: a conflict, executed once");
}

# Trailers behind a length that was announced. curl looks for none there, so the
# frames are looked at; nginx writes the same lines the same way.
for my $size (1, 300, 100000) {
    my $id = "length-$size";

    my @r = map {
        my $c = HeaderFrames->new($g->port(1));
        my $r = $c->response($c->request(POST => "/s?id=$id&grpc=0&size=$size",
                                         key => $id, body => 'body'));
        $c->close;
        +{ %$r, blocks => $c->{blocks} // [] };
    } 1 .. 3;

    is(join(' ', $r[0]{status}, scalar @{$r[0]{blocks}}, length $r[0]{body}),
       "200 2 $size", "$id: passes, all of it, with trailers");

    for (1, 2) {
        ok($r[$_]{ended} && $r[$_]{body} eq $r[0]{body}, "$id: replay $_, whole");
        is(unpack('H*', $r[$_]{blocks}[1] // ''),
           unpack('H*', $r[0]{blocks}[1] // 'none'), '... with the same trailers');
    }

    is(executions($id), 1, '... executed once');
}

ok($g->stop, 'nginx stops in good order');

done_testing();


# A client that keeps the header blocks it gets, trailers among them.

package HeaderFrames;

BEGIN { our @ISA = 'Stress::H2' }

sub take {
    my ($self, $f) = @_;

    push @{$self->{blocks}}, substr $f, 9
        if unpack('x3C', $f) == Stress::H2::HEADERS;

    return $self->SUPER::take($f);
}
