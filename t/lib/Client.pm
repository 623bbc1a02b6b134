package Client;

# A client that sees every byte: what it sends, its connections, the responses,
# and whether two of these are one.
#
#    message(METHOD, URI, %o): the bytes that request() sends.
#    told(responses): "200 NEW, 409 CONFLICT", of header lines X-Status.
#    same_replay(a, b, name): all but Date and the marker.
#    same_message(a, b, name): the comparison alone, without asking who is marked.
#    Idempotency::Connection->new(port): ->send(bytes), ->response reads the next
#      one, ->closed waits for EOF, ->readable(seconds), ->close ->reset.
#    Idempotency::Response: { status reason version head lines => [...] body
#      trailers => [...] interim => [...] raw chunked broken closed }, methods
#      header(NAME) (all values joined by ', '), has(NAME), replayed(). No answer:
#      status 0.

use strict;
use warnings;

use Exporter 'import';
use Machine ();
use Test::More ();

our @EXPORT = qw(message told same_message same_replay);


sub told {
    return join ', ', map { "$_->{status} " . ($_->header('X-Status') // '-') } @_;
}


# Two whole responses are the same bytes, line by line and in order. Only the
# marker, Date and Connection may differ, what the tests add to see who answered,
# and how the body was cut into chunks: that is no part of the message.

sub same_message {
    my ($first, $again, $name) = @_;

    local $Test::Builder::Level = $Test::Builder::Level + 1;

    my ($a, $b) = map {
        my $r = $_;
        join("\n", $r->{line},
                  grep(!/^(?:Date|Connection|Idempotent-Replayed|X-Status|X-Pid):/i,
                       @{$r->{lines}}),
                  $r->{broken} ? 'BROKEN' : '', $r->{body}, '',
                  @{$r->{trailers}});
    } $first, $again;

    return 1 if Test::More::ok($a eq $b && $first->{status}, $name);

    # the first difference is enough: bodies are long and binary
    my ($same) = ($a ^ $b) =~ /^(\0*)/;
    my $i = length $same;
    my $from = $i < 200 ? 0 : $i - 200;

    Test::More::diag('lengths ', length $a, ', ', length $b, ", differ at $i:",
        map { "\n---\n" . substr($_, $from, $i - $from + 100)
                          =~ s/([^ -~\n])/sprintf '\\x%02x', ord $1/ger } $a, $b);

    return 0;
}


# The same, where the first is an execution and the other its replay.

sub same_replay {
    my ($first, $again, $name) = @_;

    local $Test::Builder::Level = $Test::Builder::Level + 1;

    my ($marks) = join ' ', map { $_->header('Idempotent-Replayed') // 'no' }
                            $first, $again;

    return same_message(@_) if $marks eq 'no true';
    return Test::More::is($marks, 'no true', "$name: which is marked as a replay");
}


sub message {
    my ($method, $uri, %o) = @_;

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

    return join "\r\n", "$method $uri HTTP/" . ($o{version} // '1.1'), @h, '',
                        $body // '';
}


package Idempotency::Connection;

use strict;
use warnings;

use Errno qw(EAGAIN EWOULDBLOCK EINTR);
use IO::Socket::INET;
use Socket qw(SOL_SOCKET SO_LINGER);
use Time::HiRes qw(time);

sub new {
    my ($class, $port) = @_;

    my $s = IO::Socket::INET->new(PeerAddr => '127.0.0.1', PeerPort => $port)
        or die "connect to port $port: $!\n";

    $s->blocking(0);

    return bless { sock => $s, buf => '', out => '', eof => 0, method => 'GET' },
                 $class;
}


# What all clients of a test wait in: sends what is to be sent and reads what
# comes, on each of the connections, until the test returns something, nobody is
# left who could say more, or the end. Reads while it sends, or a long body and an
# early answer would wait for each other.

sub serve {
    my ($test, $end, @c) = @_;

    local $SIG{PIPE} = 'IGNORE';

    while (1) {
        my $r = $test->();
        return $r if defined $r;

        @c = grep { !$_->{eof} } @c;
        my $left = $end - time;
        return undef if !@c || $left <= 0;

        my ($in, $out) = ('', '');

        for (@c) {
            vec($in, fileno $_->{sock}, 1) = 1;
            vec($out, fileno $_->{sock}, 1) = 1 if length $_->{out};
        }

        next if select($in, $out, undef, $left) < 1;

        for (@c) {
            $_->fill if vec $in, fileno $_->{sock}, 1;
            $_->flush if vec $out, fileno $_->{sock}, 1;
        }
    }
}


sub again { return $! == EAGAIN || $! == EWOULDBLOCK || $! == EINTR }


sub fill {
    my ($self) = @_;

    my $n = sysread $self->{sock}, $self->{buf}, 65536, length $self->{buf};

    return if !defined $n && again();

    $self->{arrived} //= time;
    $self->{reset} = 1 if !defined $n;
    $self->{eof} = 1 if !$n;
}


sub flush {
    my ($self) = @_;

    my $n = syswrite $self->{sock}, $self->{out}, 65536;

    if (defined $n) {
        substr($self->{out}, 0, $n) = '';

    } elsif (!again()) {
        $self->{out} = '';
        $self->{unsent} = 1;
    }
}


sub send {
    my ($self, $data) = @_;

    $self->{out} .= $data;
    delete @$self{qw(unsent arrived)};
    $self->want(sub { length $self->{out} ? undef : 1 });

    return !$self->{unsent} && !length $self->{out};
}


sub want {
    my ($self, $test, $end) = @_;

    return serve($test, $end // time + Machine::patience(), $self);
}


# The next response on this connection; if none came, one of status 0.

sub response {
    my ($self, $method, $timeout) = @_;

    my $end = time + ($timeout // $self->{timeout}
                      // Machine::patience());
    my @interim;

    while (1) {
        my $head = $self->want(sub {
            $self->{buf} =~ s/\A(.*?\r\n\r\n)//s ? $1 : undef
        }, $end);

        my $r = Idempotency::Response->new($head // return
                                           Idempotency::Response->new);

        if ($r->{status} < 200 && $r->{status} != 101) {
            push @interim, $head;
            next;
        }

        $r->{interim} = \@interim;
        $r->{raw} = join '', @interim, $head;
        $self->body($r, $method // $self->{method}, $end);

        return $r;
    }
}


sub body {
    my ($self, $r, $method, $end) = @_;

    # all there is, if it was cut off
    my $take = sub {
        my ($re) = @_;
        my $got = $self->want(sub {
            return $re =~ /^\d/ ? length $self->{buf} >= $re
                                  ? substr $self->{buf}, 0, $re, '' : undef
                                : $self->{buf} =~ s/\A([^\n]*\n)// ? $1 : undef;
        }, $end);

        if (!defined $got) {
            $r->{broken} = 1;
            $got = $re =~ /^\d/ ? substr $self->{buf}, 0, length $self->{buf}, '' : '';
        }

        $r->{raw} .= $got;
        return $got;
    };

    return if $method eq 'HEAD' || $r->{status} =~ /^(?:101|204|304)$/;

    if (($r->header('Transfer-Encoding') // '') =~ /chunked/i) {
        $r->{chunked} = 1;

        while (my $n = hex($take->('line') =~ /^([0-9a-f]+)/i ? $1 : 0)) {
            $r->{body} .= $take->($n);
            $take->('line') unless $r->{broken};
        }

        while (!$r->{broken}) {
            (my $l = $take->('line')) =~ s/\r?\n\z//;
            last if $l eq '';
            push @{$r->{trailers}}, $l;
        }

    } elsif (defined(my $n = $r->header('Content-Length'))) {
        $r->{body} = $take->($n);

    } else {
        $r->{closed} = $self->closed($end);
        $r->{broken} = 1 if !$self->{eof} || $self->{reset};
        $r->{raw} .= $r->{body} = substr $self->{buf}, 0, length $self->{buf}, '';
    }
}


# Waits for the peer's end of the connection.

sub closed {
    my ($self, $end) = @_;

    $self->want(sub { undef }, $end);

    return $self->{eof};
}


# Anything to read within so many seconds? For "still waiting" assertions.

sub readable {
    my ($self, $timeout) = @_;

    return $self->want(sub { length $self->{buf} ? 1 : undef },
                       time + ($timeout || 0.001)) || $self->{eof};
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

    my ($line, @lines) = split /\r\n/, $head // 'none 0 no response';
    my ($version, $status, $reason) = split / /, $line, 3;

    return bless { head => $head // $line, line => $line, version => $version,
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


1;
