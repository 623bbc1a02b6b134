#!/usr/bin/perl

# What a gRPC service says comes last, in trailers: a response without them is
# none, and what they say counts.

use FindBin;
use lib "$FindBin::Bin/lib";
use Idempotency;
use Stress ();
use Time::HiRes qw(sleep);

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

sub block { return join '', map { pack 'C C/a C/a', 0, @$_ } @_ }

my ($END, $WHOLE) = (1, 4);

sub head {
    my ($end, @lines) = @_;

    return frame(1, $WHOLE | $end, "\x88" . block(@lines));
}

sub data { return frame(0, $_[1] // 0, $_[0]) }

sub tail { return frame(1, $WHOLE | $END, block(@_)) }

my @type = ('content-type', 'application/grpc');
my @length = ('content-length', '5');
my @says = ('x-accel-idempotency');

my %service = (
    good      => [ head(0, \@type), data('hello'),
                   tail(['grpc-status', '0'], ['x-other', 'b']) ],
    length    => [ head(0, \@type, \@length), data('hello'),
                   tail(['grpc-status', '0'], ['x-other', 'b']) ],
    only      => [ head($END, \@type, ['grpc-status', '3']) ],
    plain     => [ head(0, ['content-type', 'text/plain']),
                   data('hello', $END) ],

    # what has no end
    closed    => [ head(0, \@type, \@length), data('hello'), 'pause',
                   'close' ],
    reset     => [ head(0, \@type, \@length), data('hello'), 'pause',
                   frame(3, 0, pack 'N', 2) ],
    'closed-any' => [ head(0, \@type), data('hello'), 'pause', 'close' ],
    'closed-at-once' => [ head(0, \@type, \@length), data('hello'),
                          'close' ],
    'reset-at-once' => [ head(0, \@type, \@length), data('hello'),
                         frame(3, 0, pack 'N', 2) ],
    none      => [ head(0, \@type), data('hello', $END) ],
    'none-length' => [ head(0, \@type, \@length), data('hello', $END) ],
    'none-proto' => [ head(0, ['content-type', 'application/grpc+proto']),
                      data('hello', $END) ],

    # what says so itself
    release   => [ head(0, \@type), data('hello'),
                   tail(['grpc-status', '0'], [@says, 'release']) ],
    'release-length' => [ head(0, \@type, \@length), data('hello'),
                          tail(['grpc-status', '0'], [@says, 'release']) ],
    'keep-14' => [ head(0, \@type, [@says, 'release']), data('hello'),
                   tail(['grpc-status', '14'], [@says, 'keep']) ],
    14        => [ head(0, \@type), data('hello'),
                   tail(['grpc-status', '14']) ],
    '14-only' => [ head($END, \@type, ['grpc-status', '14']) ],
    13        => [ head(0, \@type), data('hello'),
                   tail(['grpc-status', '13']) ],
);

my $test = $$;
my (%port, %count, @children);

for my $name (keys %service) {
    my $s = IO::Socket::INET->new(Listen => 16, LocalAddr => '127.0.0.1')
        or die $!;

    $port{$name} = $s->sockport;
    pipe($count{$name}, my $counter) or die $!;
    $count{$name}->blocking(0);

    my $pid = fork // die $!;
    push @children, $pid;
    next if $pid;

    $SIG{$_} = 'DEFAULT' for qw(TERM INT HUP);
    serve($s, $counter, @{$service{$name}});
    POSIX::_exit(0);
}

END {
    local $?;
    if ($$ == $test) {
        kill KILL => $_ for @children;
        waitpid $_, 0 for @children;
    }
}

sub serve {
    my ($listen, $counter, @frames) = @_;

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
            sleep 0.2, next if $f eq 'pause';
            syswrite $c, $f;
        }

        # nginx closes, or has closed
        1 while !$close && sysread $c, $buf, 65536;
        close $c;
    }
}

my %seen;

sub executed {
    my ($name) = @_;

    $seen{$name} += sysread($count{$name}, my $dots, 1000) || 0;

    return $seen{$name};
}


# --- nginx ------------------------------------------------------------------

my $n = nginx(http => <<'EOC' . <<EOC2 . '}');
    access_log $TEST_NGINX_ROOT/logs/access.log;
    server {
        listen 127.0.0.1:$TEST_NGINX_RAND_PORT_1 http2;
        idempotency zone=z;
        idempotency_in_progress reject;
EOC
    @{[ map { "location /$_/ { grpc_pass grpc://127.0.0.1:$port{$_}; }\n" }
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
    my ($at, $key) = @_;

    my $r = $n->curl('--http2-prior-knowledge', '-H', 'TE: trailers',
                     '-H', 'Content-Type: application/grpc',
                     '-H', "Idempotency-Key: $key", '--data-binary', 'body',
                     'http://127.0.0.1:' . $n->port(1) . "/$at/M");

    $asked++;
    until_true { $asked <= (() = $n->access_log =~ /\n/g) };

    return $r;
}

sub told {
    my ($r) = @_;

    return join ' ', $r->{status}, $r->replayed ? 'again' : (),
                     $r->{body} =~ /not_kept/ ? 'not_kept' : ();
}

for my $case (['good', 'again'], ['length', 'again'], ['only', 'again'],
              ['plain', 'again'], ['13', 'again'], ['keep-14', 'again'],
              (map { [ $_, 'not_kept' ] } qw(closed reset closed-any
                                              closed-at-once reset-at-once
                                              none none-length none-proto)),
              (map { [ $_, 'released' ] } qw(release release-length 14
                                              14-only)))
{
    my ($name, $is) = @$case;
    my @r = map { ask($name, $name) } 1 .. 3;

    # of what broke off, a client makes what it can
    is($r[0]{status}, 200, "$name: passes") unless $name =~ /closed|reset/;
    is(told($_), $is eq 'again' ? '200 again'
               : $is eq 'not_kept' ? '409 not_kept' : '200', "$name: $is")
        for @r[1, 2];

    is(executed($name), $is eq 'released' ? 3 : 1, "$name: executed");
    ok(!grep(/x-accel/i, @{$r[0]{lines}}, @{$r[0]{trailers}}),
       "$name: what it says for us stays here");

    if ($is eq 'again') {
        is($r[1]{body}, $r[0]{body}, "$name: the same");
        is_deeply($r[1]{trailers}, $r[0]{trailers}, "$name: and trailers");
    }
}

# nor is it seen by those who have nothing to keep

my $r = ask('unprotected', 'u');
is($r->{status}, 200, 'a method that is not protected: passes');
ok(!grep(/x-accel/i, @{$r->{lines}}, @{$r->{trailers}}),
   'a method that is not protected: the line is hidden');

ok($n->stop, 'nginx stops in good order');

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
