package Stress;

# What tests of overlapping requests need beyond Idempotency.pm: to know which
# worker has which request, to know that a request waits, and a client of
# HTTP/2 that misbehaves at will.
#
#    my $n = nginx(workers => 4, http => crowd(<<'EOC'), allow => qr/.../);
#        location / { idempotency zone=z; proxy_pass http://$TEST_NGINX_BACKEND; }
#    EOC
#      crowd(TEXT, listen): a server whose connections spread over all workers,
#      on nginx's own port and, HTTP/2, on port 1. All its responses say X-Pid,
#      the worker, and X-Status. TEXT goes into the server, "listen" (such as
#      'sndbuf=8k') to its sockets. /pid, /stub and /figures/ are its own.
#    my $c = connection_to($n, PID): one that this worker has accepted.
#    ask($c, METHOD, URI, %o): sends a request there; returns $c.
#    my $p = parking($n): a connection to each worker that there is now;
#      parked($p, N): waits until nginx has read all that it was sent, and these
#      workers have been back in their event loops since: whatever can be done
#      is done, and at least N requests are where they stay.
#    my ($c, $uri, @o) = owner($n, ID, pid => , at => '/x', more => ''): an owner that
#      the backend holds until go(ID), in that worker; those who wait for it send
#      $uri and @o. With stuck => 1 it is one that can't connect.
#    gather(connections): their responses, in this order; each has {arrived},
#      when its first byte came.
#    problem($r): "in_doubt", the problem's type.
#    stuck_port(): connecting hangs.
#    median(numbers).
#    my $h = h2($n); my $s = $h->request('POST', URI, key => , body => , ...);
#      { method ..., open => 1 leaves the body unfinished, window => bytes it
#      accepts of a response at most }; $h->response($s) waits for its end:
#      { status body ended reset }, $h->header($s), $h->reset_stream($s),
#      $h->close, $h->reset.

use strict;
use warnings;

use Exporter 'import';
use Idempotency ();
use IO::Socket::INET;
use Time::HiRes qw(time);

our @EXPORT = qw(crowd connection_to ask owner parking parked gather
                 problem stuck_port median h2);


sub crowd {
    my ($text, $listen) = @_;

    $listen //= '';

    return <<"EOC";
    server {
        listen 127.0.0.1:\$TEST_NGINX_PORT reuseport $listen;
        listen 127.0.0.1:\$TEST_NGINX_RAND_PORT_1 http2 reuseport $listen;
        server_name localhost;
        keepalive_timeout 1h;

        add_header X-Pid \$pid always;
        add_header X-Status \$idempotency_status always;

        location = /pid { idempotency off; return 200 \$pid; }
        location = /stub { idempotency off; stub_status; }
        location /figures/ { idempotency off; idempotency_api; }

        $text
    }
EOC
}


# --- who has it, and where it stands ----------------------------------------

sub connection_to {
    my ($n, $pid) = @_;

    for (1 .. 2000) {
        my $c = $n->connect;
        $c->send("GET /pid HTTP/1.1\r\nHost: localhost\r\n\r\n");

        # a stopped worker's connections get no answer
        my $r = $c->response(GET => 5);

        return $c if $r->{body} eq $pid;
        $c->close;
    }

    die "no connection to worker $pid";
}


sub ask {
    my ($c, $method, $uri, %o) = @_;

    $c->{method} = $method;
    $c->{started} = time;
    $c->send(Idempotency::message($method, $uri, %o));

    return $c;
}


sub parking {
    my ($n) = @_;

    return { n => $n, control => { map { $_ => connection_to($n, $_) }
                                   $n->workers } };
}


# What has been read is handled, up to where the request waits, before a worker
# looks at anything else. Twice, as nginx puts some of it off to the end of a
# round.

sub parked {
    my ($p, $count) = @_;

    my $n = $p->{n};
    my $ok = Idempotency::until_true(sub {
        return !under_way($n) && !under_way($n);
    });

    for my $pid ((keys %{$p->{control}}) x 2) {
        my $c = $p->{control}{$pid};

        ask($c, 'GET', '/pid');
        $ok = 0 if $c->response->{body} ne $pid;
    }

    $ok &&= $n->heard;

    my ($now) = $n->get('/stub')->{body} =~ /Writing: (\d+)/;

    Test::More::diag("only $now requests") if $ok && $now - 1 < $count;

    return $ok && $now - 1 >= $count;
}


# Bytes that were sent to nginx and that it has not read, by the kernel's table
# of sockets.

sub under_way {
    my ($n) = @_;

    my %port = map { sprintf('%04X', $_) => 1 } values %{$n->{ports}};
    my $sum = 0;

    open my $f, '<', '/proc/net/tcp' or die "/proc/net/tcp: $!";

    while (<$f>) {
        my ($to, $from, $sent, $got)
            = /:(\w{4}) \w+:(\w{4}) 01 (\w+):(\w+)/ or next;

        $sum += hex $got if $port{$to};
        $sum += hex $sent if $port{$from};
    }

    return $sum;
}


# It has its claim before anybody else asks.

sub owner {
    my ($n, $id, %o) = @_;

    my $uri = ($o{at} // '/x') . "?id=$id&gate=1" . ($o{more} // '');
    my @o = (key => $id, body => 'b');
    my $p = $o{stuck} && parking($n);
    my $c = ask($o{pid} ? connection_to($n, $o{pid}) : $n->connect, 'POST', $uri, @o);

    $p ? parked($p, 1) : Idempotency::held($id);

    return ($c, $uri, @o);
}


sub gather {
    my (@c) = @_;

    delete $_->{arrived} for grep !length $_->{buf}, @c;
    Idempotency::Connection::serve(
        sub { (grep !$_->{arrived}, @c) ? undef : 1 },
        time + Idempotency::patience(), @c);

    return map {
        my $r = $_->response(undef, $_->{arrived} ? undef : 0);
        $r->{arrived} = delete $_->{arrived};
        $r;
    } @c;
}


# --- small things -----------------------------------------------------------

sub problem {
    my ($r) = @_;

    return $r->{body} =~ m{"type":\s*"[^"]*?(\w+)"} ? $1 : 'no problem';
}


my @kept;

# The kernel drops the SYNs to a queue that is full.

sub stuck_port {
    my $l = IO::Socket::INET->new(Listen => 1, LocalAddr => '127.0.0.1')
        or die "listen: $!";
    push @kept, $l;

    for (1 .. 4) {
        my $s = IO::Socket::INET->new(PeerAddr => '127.0.0.1',
                                      PeerPort => $l->sockport, Blocking => 0)
            or next;
        push @kept, $s;
    }

    return $l->sockport;
}


sub median {
    my @s = sort { $a <=> $b } @_;

    return $s[$#s / 2];
}


# --- HTTP/2 -----------------------------------------------------------------

sub h2 {
    my ($n, %o) = @_;

    return Stress::H2->new($n->port(1), %o);
}


package Stress::H2;

use strict;
use warnings;

use Time::HiRes qw(time);

use constant { DATA => 0, HEADERS => 1, RST_STREAM => 3, SETTINGS => 4,
               PING => 6, GOAWAY => 7, WINDOW_UPDATE => 8 };

sub new {
    my ($class, $port, %o) = @_;

    my $self = bless { c => Idempotency::Connection->new($port), next => 1,
                       window => $o{window} // 0x7fff0000, streams => {} },
                     $class;

    # INITIAL_WINDOW_SIZE, and as much for the whole connection

    my $more = $self->{window} - 65535;

    $self->{c}->send("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
                     . frame(SETTINGS, 0, 0, pack 'nN', 4, $self->{window})
                     . ($more > 0 ? frame(WINDOW_UPDATE, 0, 0, pack 'N', $more)
                                  : ''));
    return $self;
}


sub frame {
    my ($type, $flags, $stream, $data) = @_;

    return substr(pack('N', length $data), 1) . pack('CCN', $type, $flags, $stream)
           . $data;
}


# Every field a literal, never indexed, no Huffman code.

sub literal {
    my ($s) = @_;

    my $n = length $s;

    return pack('C', $n) . $s if $n < 127;

    my $more = $n - 127;
    my $bytes = pack 'C', 127;

    while ($more >= 128) {
        $bytes .= pack 'C', 128 | $more & 127;
        $more >>= 7;
    }

    return $bytes . pack('C', $more) . $s;
}


sub request {
    my ($self, $method, $uri, %o) = @_;

    my $id = $self->{next};
    $self->{next} += 2;

    my @h = (':method' => $method, ':scheme' => 'http', ':path' => $uri,
             ':authority' => 'localhost');

    push @h, 'idempotency-key' => $o{key} if defined $o{key};
    push @h, 'content-length' => length $o{body} if defined $o{body} && !$o{open};

    my $block = '';
    $block .= "\0" . literal(shift @h) . literal(shift @h) while @h;

    my $bytes = frame(HEADERS, 4 | (defined $o{body} ? 0 : 1), $id, $block);

    $bytes .= frame(DATA, $o{open} ? 0 : 1, $id, $o{body})
        if defined $o{body};

    $self->{streams}{$id} = { body => '', status => 0 };
    $self->{c}->send($bytes);

    return $id;
}


# Reads frames until the test is true of the stream.

sub until_stream {
    my ($self, $id, $test, $timeout) = @_;

    my $c = $self->{c};
    my $s = $self->{streams}{$id};
    my $end = time + ($timeout // Idempotency::patience());

    until ($test->($s)) {
        my $f = $c->want(sub {
            return undef if length $c->{buf} < 9;

            my $n = unpack 'N', "\0" . substr $c->{buf}, 0, 3;

            return undef if length $c->{buf} < 9 + $n;
            return substr $c->{buf}, 0, 9 + $n, '';
        }, $end);

        return $s if !defined $f;
        $self->take($f);
    }

    return $s;
}


sub take {
    my ($self, $f) = @_;

    my ($type, $flags, $id) = unpack 'CCN', substr $f, 3, 6;
    my $data = substr $f, 9;
    my $s = $self->{streams}{$id} // {};

    if ($type == SETTINGS && !($flags & 1)) {
        $self->{c}->send(frame(SETTINGS, 1, 0, ''));

    } elsif ($type == PING && !($flags & 1)) {
        $self->{c}->send(frame(PING, 1, 0, $data));

    } elsif ($type == HEADERS) {
        $s->{status} ||= status($data);

    } elsif ($type == DATA) {
        $s->{body} .= $data;

    } elsif ($type == RST_STREAM) {
        $s->{reset} = unpack 'N', $data;

    } elsif ($type == GOAWAY) {
        $self->{goaway} = 1;
    }

    $s->{ended} = 1 if ($type == HEADERS || $type == DATA) && $flags & 1;
}


# nginx sends :status first: indexed, or as three digits.

sub status {
    my ($block) = @_;

    $block =~ s/^[\x20-\x3f]//;

    my %indexed = (0x88 => 200, 0x89 => 204, 0x8a => 206, 0x8b => 304,
                   0x8c => 400, 0x8d => 404, 0x8e => 500);

    return $indexed{ord $block}
           // ($block =~ /^[\x08\x48]\x03(\d\d\d)/ ? $1 : 0);
}


sub header {
    my ($self, $id, $timeout) = @_;

    return $self->until_stream($id, sub { $_[0]{status} || defined $_[0]{reset} },
                               $timeout);
}


sub response {
    my ($self, $id, $timeout) = @_;

    return $self->until_stream($id, sub { $_[0]{ended} || defined $_[0]{reset} },
                               $timeout);
}


sub reset_stream {
    my ($self, $id) = @_;

    # CANCEL
    $self->{c}->send(frame(RST_STREAM, 0, $id, pack 'N', 8));
}


sub close { $_[0]{c}->close }

sub reset { $_[0]{c}->reset }


1;
