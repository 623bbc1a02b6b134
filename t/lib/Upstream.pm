package Upstream;

# The loop of the tests' upstreams: one process, one select, core Perl only.
#
#    serve(LIFELINE, [DESCRIPTOR, CODE], …): until the life line closes, that is,
#      with the test. CODE takes one whole request off $c->{in} and returns what is
#      to be done for it, or nothing if it isn't there yet:
#      ['write', BYTES] ['delay', SECONDS] ['close'] ['rst'] (a reset)
#      ['gate', ID] (until somebody says go(ID)) ['held', ID, N] (until so many are)
#    go(ID): opens a gate; how many went.
#    pattern(SIZE, N): the body of execution number N.
#    $c->{ended}: called when all is done, or the connection is gone. $c->{patient}:
#      what was begun is done, though the client left, if nobody can tell it.

use strict;
use warnings;

use Errno qw(EAGAIN EWOULDBLOCK EINTR);
use Exporter 'import';
use IO::Handle;
use IO::Socket::INET;
use Socket qw(SOL_SOCKET SO_LINGER IPPROTO_TCP TCP_NODELAY);
use Time::HiRes qw(time);

our @EXPORT = qw(serve go pattern);

my (%conn, %held);


sub serve {
    my ($life, @listen) = @_;

    $SIG{PIPE} = 'IGNORE';
    $life = IO::Handle->new_from_fd($life, 'r') or die "life line: $!";

    for (@listen) {
        $_->[0] = IO::Socket::INET->new_from_fd($_->[0], 'r+') or die "listen: $!";
        $_->[0]->blocking(0);
    }

    while (1) {
        my ($r, $w, $timeout, $now) = ('', '', undef, time);

        vec($r, fileno $_, 1) = 1 for $life, map $_->[0], @listen;

        for my $c (values %conn) {
            vec($r, $c->{fd}, 1) = 1 unless $c->{eof};
            vec($w, $c->{fd}, 1) = 1 if length $c->{out};

            if (defined $c->{wake}) {
                my $t = $c->{wake} > $now ? $c->{wake} - $now : 0;
                $timeout = $t if !defined $timeout || $t < $timeout;
            }
        }

        next if select($r, $w, undef, $timeout) < 0;
        last if vec $r, fileno $life, 1;

        for (@listen) {
            my ($l, $take) = @$_;

            while (vec($r, fileno $l, 1) && (my $s = $l->accept)) {
                $s->blocking(0);
                setsockopt($s, IPPROTO_TCP, TCP_NODELAY, 1);
                $conn{fileno $s} = { fd => fileno $s, sock => $s, take => $take,
                                     in => '', out => '', queue => [] };
            }
        }

        $now = time;

        for my $c (my @all = values %conn) {
            receive($c) if vec $r, $c->{fd}, 1;

            if (defined $c->{wake} && $c->{wake} <= $now) {
                delete $c->{wake};
                step($c);
            }

            flush($c);
        }
    }
}


sub failed { return !($! == EAGAIN || $! == EWOULDBLOCK || $! == EINTR) }


sub receive {
    my ($c) = @_;

    my $n = sysread $c->{sock}, $c->{in}, 65536, length $c->{in};

    if (!defined $n) {
        drop($c) if failed();
        return;
    }

    if ($n == 0) {
        # nginx went away: nothing is left to do, unless a gate holds it (the
        # gate's count must not change under the test's eyes)
        $c->{eof} = 1;
        return drop($c) unless $c->{patient} && @{$c->{queue}};
    }

    step($c);
}


sub flush {
    my ($c) = @_;

    return unless $conn{$c->{fd}} && length $c->{out};

    while (length $c->{out}) {
        my $n = syswrite $c->{sock}, $c->{out}, 65536;

        if (!defined $n) {
            drop($c) if failed();
            return;
        }

        substr($c->{out}, 0, $n) = '';
    }

    step($c);
}


sub ended {
    my ($c) = @_;

    my $code = delete $c->{ended} or return;
    $code->();
}


sub drop {
    my ($c, $rst) = @_;

    setsockopt($c->{sock}, SOL_SOCKET, SO_LINGER, pack 'ii', 1, 0) if $rst;

    ended($c);
    delete $conn{$c->{fd}};
    delete $held{$_}{$c->{fd}} for keys %held;
    close $c->{sock};
    wake_waiters();
}


# Performs the queued actions of a connection until one has to wait.

sub step {
    my ($c) = @_;

    return unless $conn{$c->{fd}};
    return if defined $c->{wake} || defined $c->{gate};

    while (1) {
        my $a = shift @{$c->{queue}};

        if (!$a) {
            ended($c) unless length $c->{out};
            @{$c->{queue}} = $c->{take}->($c) or return;
            next;
        }

        my ($do, $arg, $more) = @$a;

        if ($do eq 'write') {
            $c->{out} .= $arg;

        } elsif (length $c->{out}) {
            # everything below acts on what the peer has been sent
            unshift @{$c->{queue}}, $a;
            return flush($c);

        } elsif ($do eq 'delay') {
            $c->{wake} = time + $arg;
            return;

        } elsif ($do eq 'gate') {
            $c->{gate} = $arg;
            $held{$arg}{$c->{fd}} = $c;
            wake_waiters();
            return;

        } elsif ($do eq 'held') {
            if (keys %{$held{$arg} || {}} < $more) {
                $c->{waiting} = 1;
                unshift @{$c->{queue}}, $a;
                return;
            }

            delete $c->{waiting};

        } else {
            return drop($c, $do eq 'rst');
        }
    }
}


sub wake_waiters {
    for my $c (my @all = values %conn) {
        next unless $c->{waiting};
        step($c);
        flush($c);
    }
}


sub go {
    my ($id) = @_;

    my @c = values %{delete $held{$id} || {}};

    for my $c (@c) {
        delete $c->{gate};
        step($c);
        flush($c);
    }

    return scalar @c;
}


# Binary, of any length, different in each byte for each execution.

sub pattern {
    my ($size, $exec) = @_;

    my $block = join '', map { chr(($_ * 167 + $exec * 59) & 255) } 0 .. 255;

    return substr $block x (1 + $size / 256), 0, $size;
}


1;
