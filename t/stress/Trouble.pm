package Trouble;

# What befalls the nginx of the stress test, and when: reloads, workers that are
# killed or stopped, and, where its tokens are to outlive it, the end of all its
# processes at once, stops, binary upgrades, and a disk with troubles of its own. It
# waits for nothing.
#
#    my $t = Trouble->new(nginx => of Restart.pm, at => sub (time, code), count =>
#                         sub (what), violation => sub (text), disk => of Disk.pm, every =>
#                         { reload => seconds, kill => , crash => , stop =>, upgrade =>, disk => });
#    $t->begin(sub { until }); $t->busy; $t->read_log
#    $t->fewest: how often the rarest of crash, stop, upgrade and disk has happened
#    $t->killed(from, to, pid): which processes died then, or this one
#    $t->trouble(from, to): did anybody, or was there nobody to connect to?
#    $t->crashed(from, to): when all died at once
#    $t->torn(from, to): was a zone half changed, and lost?
#    $t->ill(from, to): had the disk trouble?

use strict;
use warnings;

use Idempotency ();
use Restart ();
use Time::HiRes qw(time);


sub new {
    my ($class, %o) = @_;

    return bless { %o, killed => [], crashed => [], down => [], torn => [], ill => [],
                   terminated => {}, done => {}, log_at => 0, under => '', turn => 0 },
                 $class;
}


sub busy { return $_[0]{under} ne '' }


# --- what happened ---------------------------------------------------------------

sub killed {
    my ($self, $from, $to, $pid) = @_;

    return grep { $_->[1] >= $from && $_->[1] <= $to
                  && (!defined $pid || !defined $_->[0] || $_->[0] == $pid) }
                @{$self->{killed}};
}


sub trouble {
    my ($self, $from, $to) = @_;

    return $self->killed($from, $to)
           || grep { $_->[0] <= $to && $_->[1] >= $from } @{$self->{down}};
}


sub crashed {
    my ($self, $from, $to) = @_;

    return grep { $_ >= $from && $_ <= $to } @{$self->{crashed}};
}


sub torn {
    my ($self, $from, $to) = @_;

    return grep { $_->[1] >= $from && $_->[0] <= $to } @{$self->{torn}};
}


# It serves again within a moment, or that of a busy machine.

sub ill {
    my ($self, $from, $to) = @_;

    return grep { $_->[0] <= $to && $_->[1] + 5 >= $from } @{$self->{ill}};
}


sub note {
    my ($self, @pid) = @_;

    push @{$self->{killed}}, map [$_, time], @pid;
}


# --- one blow at a time ------------------------------------------------------------

sub begin {
    my ($self, $until) = @_;

    my %how = (reload => \&reload, kill => \&kill_one, crash => \&crash,
               stop => \&stop, upgrade => \&upgrade, disk => \&disk);

    for my $what (sort keys %how) {
        my $every = $self->{every}{$what} or next;
        my $blow;

        # those that take long come one after the other
        $blow = sub {
            return if $until->();

            my $wait = $what eq 'reload' ? $every : $every * (0.5 + rand);

            if ($what eq 'crash' ? $self->{under} =~ /^(?:|two|one goes)$/
                : $what eq 'disk' ? !$self->{sick}
                : $what =~ /^(?:reload|kill)$/ ? $self->{under} =~ /^(?:|two)$/
                : !$self->busy)
            {
                $self->{done}{$what}++;
                $how{$what}->($self);

            } else {
                $wait = 0.05;
            }

            $self->{at}->(time + $wait, $blow);
        };

        $self->{at}->(time + $every * ($what eq 'reload' ? 1 : rand), $blow);
    }
}


sub fewest {
    my ($self) = @_;

    my ($n) = sort { $a <=> $b } map { $self->{done}{$_} // 0 }
                                 grep { $self->{every}{$_} } qw(crash stop upgrade disk);
    return $n // 0;
}


sub await {
    my ($self, $what, $test, $then) = @_;

    my $end = time + Idempotency::patience();
    my $turn = $self->{turn};
    my $look;

    $look = sub {
        # all was killed meanwhile
        return if $self->{turn} != $turn;

        my $r = $test->();

        if (!$r && time < $end) {
            $self->{at}->(time + 0.01, $look);
            return;
        }

        undef $look;
        die "$what, $self->{under}\n" if !$r;
        $then->($r);
    };

    $look->();
}


sub workers {
    my ($self) = @_;

    my $pid = $self->{nginx}->pid;

    return grep { Idempotency::slurp("/proc/$_/cmdline") =~ /^nginx: worker/ }
                split ' ', Idempotency::slurp("/proc/$pid/task/$pid/children");
}


sub reload {
    my ($self) = @_;

    kill HUP => $self->{nginx}->pid;
    $self->{count}->('reloads');
}


sub kill_one {
    my ($self) = @_;

    my @pid = $self->workers;
    my $pid = $pid[rand @pid] or return;
    my $dice = rand 10;

    if ($dice < 7) {
        kill KILL => $pid;
        $self->note($pid);

    } elsif ($dice < 8) {
        kill TERM => $pid;
        $self->note($pid);
        $self->{terminated}{$pid} = 1;
        $self->{count}->('workers terminated');

    } else {
        kill STOP => $pid;
        $self->{at}->(time + 0.1 + rand 0.4, sub { kill CONT => $pid });
        $self->{count}->('workers stopped for a moment');
    }
}


# A machine that is not cut off from its power, but all of nginx is.

sub crash {
    my ($self) = @_;

    my $now = time;

    $self->{nginx}->strike('KILL');

    $self->{turn}++;
    push @{$self->{crashed}}, $now;
    $self->{count}->('kill -9 of everything'
                     . ($self->{under} && ', two generations'));
    $self->note(undef);
    $self->start_again($now);
}


# TERM does not wait for anybody, and what it cuts off is in doubt.

sub stop {
    my ($self) = @_;

    my $signal = rand() < 0.5 ? 'QUIT' : 'TERM';

    if ($signal eq 'TERM') {
        my $n = $self->{nginx};
        $self->{terminated}{$_} = 1 for $n->groups, grep defined, @$n{qw(pid older)};
    }

    $self->{nginx}->strike($signal);
    $self->{count}->("restarts, SIG$signal");
    $self->note(undef) if $signal eq 'TERM';
    $self->start_again(time, $signal eq 'TERM');
}


sub start_again {
    my ($self, $from, $killed) = @_;

    my $n = $self->{nginx};
    my $down = [$from - 0.1, 9e99];

    $self->{under} = 'start';
    push @{$self->{down}}, $down;

    $self->await('nginx does not go', sub { $n->gone }, sub {
        $self->note(undef) if $killed;
        $n->ignite;

        # in the middle of its start as well

        if (rand() < 0.1 && $self->{every}{crash}) {
            $self->{at}->(time + rand 0.05, sub {
                $n->strike('KILL');
                push @{$self->{crashed}}, time;
                $self->note(undef);
                $self->{count}->('kill -9 of everything, at its start');
                $self->await('nginx does not go', sub { $n->gone }, sub {
                    $n->ignite;
                    $self->up_again($down);
                });
            });

        } else {
            $self->up_again($down);
        }
    });
}


sub up_again {
    my ($self, $down) = @_;

    my $n = $self->{nginx};

    $self->await('nginx does not come', sub { $n->ready }, sub {
        die "nginx does not start:\n" . join "\n", $n->log =~ /^.*\[(?:emerg|alert|crit)\].*/mg
            if $_[0] ne 1;

        $down->[1] = time + 0.1;
        $self->{count}->('nginx serves again');
        $self->{under} = '';
    });
}


# Both generations serve for a while, then one of them goes, by itself or not; or
# both die.

sub upgrade {
    my ($self) = @_;

    my $n = $self->{nginx};

    $self->{under} = 'upgrade';
    kill USR2 => $n->pid;

    $self->await('no second generation', sub { $n->replaced }, sub {
        @$n{qw(older pid)} = ($n->pid, $_[0]);
        $self->{under} = 'two';
        $self->{count}->('binary upgrades');

        my $turn = $self->{turn};
        $self->{at}->(time + 0.1 + rand 2, sub {
            $self->end_of_two if $self->{turn} == $turn;
        });
    });
}


sub end_of_two {
    my ($self) = @_;

    my $n = $self->{nginx};
    my $dice = rand 10;
    my $signal = $dice < 7 ? 'QUIT' : 'KILL';
    my $back = $dice < 8 && $dice > 5;

    @$n{qw(older pid)} = @$n{qw(pid older)} if $back;
    $self->{under} = 'one goes';
    $self->{count}->('... which ' . ($back ? 'the older' : 'the newer')
                     . " one outlives, SIG$signal");

    my @all = $n->dismiss('older', $signal);

    $self->note(@all) if $signal eq 'KILL';
    $self->await('a generation does not go', sub { Restart::Nginx::over(@all) },
        sub {
            $self->await('no pid file', sub { $n->pid_file == $n->pid },
                         sub { $self->{under} = '' });
        });
}


# The disk hangs, wholly or when it syncs, is slow, full, or gone for a while. What it
# failed to sync nobody knows: that ends with nginx.

my %ills = (
    'hangs'             => [ 3, all => 'hang' ],
    'hangs in syncs'    => [ 4, sync => 'hang' ],
    'hangs in writes'   => [ 3, write => 'hang' ],
    'is slow'           => [ 3, read => 5, write => 5, sync => 100 ],
    'is slow in syncs'  => [ 4, sync => 200 ],
    'is full'           => [ 2, write => 'full' ],
    'is gone'           => [ 2, open => 'gone', write => 'fail' ],
    'fails to sync'     => [ 1, sync => 'fail' ],
);

sub disk {
    my ($self) = @_;

    my $ill = (sort keys %ills)[rand keys %ills];

    # it takes a kill to be well again
    $ill = 'hangs' if $ill eq 'fails to sync' && !$self->{every}{crash};

    my ($longest, %how) = @{$ills{$ill}};
    my $time = [time, 9e99];

    push @{$self->{ill}}, $time;
    $self->{sick} = 1;
    $self->{count}->("the disk $ill");
    $self->{disk}->set(%how);

    my $well;

    $well = sub {
        if ($ill eq 'fails to sync') {
            return $self->{at}->(time + 0.05, $well) if $self->{under} !~ /^(?:|two|one goes)$/;
            $self->crash;
        }

        # whoever started meanwhile may be without the file until a reload

        $self->{disk}->well;
        $self->{count}->('the disk is well again');
        $self->heal($time);
    };

    $self->{at}->(time + 0.1 + rand $longest, $well);
}


sub heal {
    my ($self, $time) = @_;

    if ($self->{under} =~ /^(?:|two)$/) {
        $self->reload;
        $time->[1] = time;
        $self->{sick} = 0;

    } else {
        $self->{at}->(time + 0.05, sub { $self->heal($time) });
    }
}


# --- what nginx says ----------------------------------------------------------------

# Which workers died, of whatever, stands in the log a moment later, or much
# later where the machine is busy.
#
# If one dies inside the lock, the zone is refused until a reload makes it anew,
# and what it knew is forgotten. That is said, and forgiven.

sub read_log {
    my ($self) = @_;

    open my $f, '<', $self->{nginx}->root . '/logs/error.log' or return;
    seek $f, $self->{log_at}, 0;

    while (my $line = <$f>) {
        last if $line !~ /\n\z/;
        $self->{log_at} = tell $f;

        if ($line =~ /worker process (\d+) exited on signal/) {
            $self->note($1);
            $self->{count}->('workers killed');

        } elsif ($line =~ /was left inconsistent by process/) {
            push @{$self->{torn}}, [time, 9e99];
            $self->{count}->('zones left half changed');

        } elsif ($line =~ /is made anew/) {
            $_->[1] = time for grep { $_->[1] == 9e99 } @{$self->{torn}};
            $self->{count}->('zones made anew');

        } elsif ($line =~ /claim was taken over/) {
            $self->{count}->('late owners refused');
        }
    }
}


1;
