package Between;

# A proxy in front of a server, which does with what goes between as it is told.
#
#       my $b = Between->new($port);    to 127.0.0.1:$port, at $b->port
#       $b->now(HOW, WHOSE)             WHOSE: clients, sentinels, replicas, or all,
#                                       which is what no other one is said about
#           flow    as it comes
#           late    it is kept, and delivered when it flows again: all of it, in its
#                   order, and to the server also what was said by who has gone
#           deaf    what goes to the server is swallowed
#           mute    ... what comes from it
#           away    who is there is cut off, and nobody is let in
#           cut     who is there is cut off, and it flows
#           slow    what goes to the server goes at 200 KB a second on each connection
#
# It is so when now() has returned. Connections of which something was swallowed
# end when it flows again.

use strict;
use warnings;

use Errno qw(EAGAIN EINTR);
use Idempotency;
use IO::Handle;
use IO::Socket::INET;
use POSIX ();
use Time::HiRes qw(time);


sub new {
    my ($class, $port) = @_;

    my $listen = IO::Socket::INET->new(Listen => 511, LocalAddr => '127.0.0.1', ReuseAddr => 1)
        or die "proxy: $!";

    pipe(my $orders, my $tell) or die "pipe: $!";
    pipe(my $done, my $say) or die "pipe: $!";

    child(sub {
        close $_ for $tell, $done;
        serve($listen, $port, $orders, $say);
    });

    $tell->autoflush(1);

    my $self = bless { port => $listen->sockport, tell => $tell, done => $done }, $class;

    close $_ for $listen, $orders, $say;

    return $self;
}


sub port { return $_[0]{port} }


sub now {
    my ($self, $how, $whose) = @_;

    print {$self->{tell}} "$how " . ($whose // 'all') . "\n";
    defined readline $self->{done} or die 'the proxy has gone';
}


# --- in a process of its own ----------------------------------------------------

my (%at, %how);

sub serve {
    my ($listen, $port, $orders, $say) = @_;

    $SIG{PIPE} = 'IGNORE';
    $_->blocking(0) for $listen, $orders;
    $say->autoflush(1);

    while (1) {
        my ($r, $w) = ('', '');

        vec($r, fileno $_, 1) = 1 for $listen, $orders;

        my $slow = 0;

        for my $s (values %at) {
            my $peer = $s->{peer};

            vec($r, $s->{fd}, 1) = 1 unless $peer && slow($peer) && length $peer->{out} > 16384;

            next if !length $s->{out} || how($s) eq 'late';

            if (slow($s)) {
                $slow = 1;
                deliver($s);

            } else {
                vec($w, $s->{fd}, 1) = 1;
            }
        }

        next if select($r, $w, undef, $slow ? 0.02 : undef) <= 0;

        if (vec $r, fileno $orders, 1) {
            sysread $orders, my $lines, 4096 or POSIX::_exit(0);
            $lines =~ s{(\w+) (\w+)\n}{ obey($1, $2); print $say "ok\n"; '' }ge;
        }

        accepted($listen, $port) if vec $r, fileno $listen, 1;

        for my $s (my @all = values %at) {
            received($s) if $at{$s->{fd}} && vec $r, $s->{fd}, 1;
            deliver($s) if $at{$s->{fd}} && vec $w, $s->{fd}, 1;
        }
    }
}


sub slow { return $_[0]{server} && how($_[0]) eq 'slow' }


sub how { return $how{$_[0]{pair}{whose}} // $how{all} // 'flow' }


sub obey {
    my ($how, $whose) = @_;

    my $new = $how eq 'cut' ? 'flow' : $how;
    my @meant = grep { $at{$_->{fd}} && ($whose eq 'all' || $_->{pair}{whose} eq $whose) } values %at;

    if ($whose eq 'all') {
        %how = (all => $new);

    } else {
        $how{$whose} = $new;
    }

    for my $s (@meant) {
        drop($s) if $how =~ /^(?:cut|away)$/ || $new eq 'flow' && $s->{pair}{swallowed};
    }
}


sub accepted {
    my ($listen, $port) = @_;

    my $in = $listen->accept or return;
    my $new = { pair => { whose => 'clients' } };

    return if how($new) eq 'away';

    my $out = IO::Socket::INET->new(PeerAddr => '127.0.0.1', PeerPort => $port) or return;

    my ($c, $s) = map {
        $_->blocking(0);
        $at{fileno $_} = { %$new, sock => $_, fd => fileno $_, out => '' };
    } $in, $out;

    $s->{server} = 1;
    @$c{peer} = $s;
    @$s{peer} = $c;
}


sub received {
    my ($s) = @_;

    my $n = sysread $s->{sock}, my $bytes, 65536;

    return if !defined $n && ($! == EAGAIN || $! == EINTR);
    return ended($s) if !$n;

    my $peer = $s->{peer} or return;

    if (!$s->{server}) {
        my $pair = $s->{pair};

        $pair->{whose} = 'replicas' if $bytes =~ /REPLCONF|PSYNC/i;
        $pair->{whose} = 'sentinels' if $bytes =~ /sentinel-[0-9a-f]{8}/;

        return drop($s) if how($s) eq 'away';
    }

    if (how($s) eq ($s->{server} ? 'mute' : 'deaf')) {
        $s->{pair}{swallowed} = 1;
        return;
    }

    $peer->{out} .= $bytes;
    deliver($peer) if how($s) ne 'late' && !slow($peer);
}


# What it has said may come although it has gone.

sub ended {
    my ($s) = @_;

    my $peer = delete $s->{peer};

    delete $at{$s->{fd}};
    close $s->{sock};

    return if !$peer;

    delete $peer->{peer};
    drop($peer) if !length $peer->{out};
}


sub deliver {
    my ($s) = @_;

    return if !length $s->{out};

    my $most = length $s->{out};

    if (slow($s)) {
        return if time < ($s->{next} // 0);
        $s->{next} = time + 0.02;
        $most = 4096;
    }

    my $n = syswrite $s->{sock}, $s->{out}, $most;

    return ended($s) if !defined $n && $! != EAGAIN && $! != EINTR;

    substr $s->{out}, 0, $n // 0, '';
    shutdown $s->{sock}, 1 if !$s->{peer} && !length $s->{out};
}


sub drop {
    my ($s) = @_;

    for my $end ($s, delete $s->{peer} // ()) {
        delete $end->{peer};
        close $end->{sock} if delete $at{$end->{fd}};
    }
}


1;
