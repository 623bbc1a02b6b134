package Restart;

# An nginx that is stopped, killed, started again and replaced by another binary
# while a test runs. It is a daemon, as USR2 does nothing for one that is not, and
# all its processes, of all generations, are one process group.
#
#    my $n = outliving(%o);       as nginx(%o) of Idempotency.pm; env => { NAME => ... }:
#                                 without, its disk is Disk->instant; under => [a command
#                                 that executes it]
#    $n->down(SIGNAL)             QUIT, TERM, or KILL: everything at once; waits
#                                 until no process is left
#    $n->up(%o)                   starts it, with changed options; dies if it does
#                                 not come; $n->refused(%o): what it said instead
#    $n->restart(SIGNAL, %o)      both
#    $n->upgrade                  USR2: a second master beside the first, which is
#                                 $n->{older} then; $n->pid is the new one
#    $n->sure(URI, ...)           as post, and once more while that is told 503: who stands
#                                 still has a disk that is out of reach for a moment
#    $n->retire(SIGNAL)           ends the older one; $n->withdraw(SIGNAL) the newer
#    with_state(MODE, more)       the text of a zone z with a file, of one of the
#                                 modes; '' as mode: without. more: such as "size=1m"
#    no_state()                   why there can be no file, or nothing
#    clock_wrong(SECONDS)         env => that: its wall clock is so much fast, or slow
#
# The same in steps that wait for nothing, for a test that has other things to do
# meanwhile: $n->ignite, $n->ready (1, or -1: it failed), $n->gone, $n->alive
# (pids), $n->strike(SIGNAL), $n->replaced (the new master's pid, or 0),
# $n->dismiss('older', SIGNAL) (pids), over(pids).

use strict;
use warnings;

use Cwd qw(abs_path);
use Disk;
use Exporter 'import';
use File::Basename qw(dirname);
use File::Temp ();
use Idempotency ();
use POSIX qw(WNOHANG);

our @EXPORT = qw(outliving with_state no_state clock_wrong);

my @all;

END {
    local $?;
    $_->stop for @all;
}


sub outliving {
    my (%o) = @_;

    %o = (%o, env => Disk->instant->env, main => Disk->main . ($o{main} // '')) if !$o{env};

    # see nginx(): a port may be taken meanwhile

    for my $try (1 .. 5) {
        my $n = bless Idempotency::instance(%o, daemon => 'on', as_is => 1),
                      'Restart::Nginx';

        Idempotency::config($n, %$n);
        $n->ignite;

        push @all, $n;
        return $n if Idempotency::until_true(sub { $n->ready }) eq 1;
        pop @all;

        my $log = $n->log . $n->slurp('logs/stderr.log');

        die "nginx did not start:\n$log"
            if $try == 5 || $log !~ /Address already in use/;
    }
}


sub with_state {
    my ($mode, %o) = @_;

    my $size = $o{size} // '16m';
    my $name = $o{name} // 'z';

    return "idempotency_zone zone=$name:$size"
           . ($mode eq '' ? '' : ' state=' . ($o{path} // "\$TEST_NGINX_ROOT/$name.db")
                                 . " sync=$mode")
           . ($o{more} ? " $o{more}" : '') . ";\n";
}


my $why;

sub no_state {
    return $why if defined $why;

    my ($ok, $said) = Idempotency::config_test(
        zone => with_state('batched'), server => 'idempotency zone=z;');

    return $why = $ok ? '' : $said =~ /\[emerg\] (.*)/ ? $1 : $said;
}


# By a library (clock.c), beside those that are there.

my $clock;

sub clock_wrong {
    my ($by) = @_;

    if (!$clock) {
        $clock = File::Temp->newdir('clock-XXXXXX', TMPDIR => 1);
        chmod 0755, $clock;

        my @cc = ($ENV{CC} // 'cc', qw(-O -shared -fPIC -o), "$clock/clock.so", dirname(abs_path(__FILE__)) . '/clock.c');

        system(@cc) == 0 or die "@cc\n";
    }

    # a sanitizer would rather be the first one
    return { CLOCK_WRONG => $by, LD_PRELOAD => join(' ', grep defined, $ENV{LD_PRELOAD}, "$clock/clock.so"),
             ASAN_OPTIONS => join ':', 'verify_asan_link_order=0', grep defined, $ENV{ASAN_OPTIONS} };
}


package Restart::Nginx;

use strict;
use warnings;

use POSIX qw(WNOHANG);

our @ISA = 'Idempotency::Nginx';

sub pid_file { return Idempotency::slurp("$_[0]{root}/nginx.pid") =~ /(\d+)/ ? $1 : 0 }


# A process that nobody has asked for its end yet has ended all the same. It has
# not before the last of its threads has: that has the files.

sub running {
    my ($stat) = @_;

    return $stat =~ /^\d+ \(.*\) ([A-Z])/s && $1 !~ /[ZX]/
           || $stat =~ /^(\d+) / && (() = glob "/proc/$1/task/*") > 1;
}


# The group of the daemon, before it has said who it is as well, and that of the
# process which makes it one.

sub groups {
    my ($self) = @_;

    $self->{group} //= $self->pid_file || (map {
        Idempotency::slurp($_) =~ m{^nginx: master process .*\Q$self->{root}/\E}
        ? m{/(\d+)/} : ()
    } glob '/proc/[0-9]*/cmdline')[0];

    return grep defined, @$self{qw(group launcher)};
}


sub alive {
    my ($self) = @_;

    my %group = map { $_ => 1 } $self->groups or return;

    return map { m{/(\d+)/} ? $1 : () } grep {
        my $stat = Idempotency::slurp($_);
        $stat =~ /^\d+ \(.*\) [A-Z] \d+ (\d+)/s && $group{$1} && running($stat);
    } glob '/proc/[0-9]*/stat';
}


# Whoever is killed may have been about to start another.

sub gone {
    my ($self) = @_;

    return 1 if !$self->alive;

    $self->strike('KILL') if $self->{killed};
    return 0;
}


sub one_is_gone { return !running(Idempotency::slurp("/proc/$_[0]/stat")) }


# --- steps -------------------------------------------------------------------

sub ignite {
    my ($self) = @_;

    unlink glob "$self->{root}/nginx.pid*";

    my @cmd = Idempotency::command($self, %$self);

    # a new binary is executed by its name alone
    ($cmd[0]) = grep { -x } map "$_/$cmd[0]", split /:/, $ENV{PATH}
        if $cmd[0] !~ m{/};

    delete @$self{qw(pid older group launcher killed stopped failed)};
    $self->{launcher} = Idempotency::process(sub {
        @ENV{keys %{$self->{env}}} = values %{$self->{env}} if $self->{env};
        setpgrp;
        open STDOUT, '>>', "$self->{root}/logs/stderr.log";
        open STDERR, '>&', \*STDOUT;
        exec @{$self->{under} // []}, @cmd or POSIX::_exit(127);
    });

    # whoever of both comes first
    setpgrp $self->{launcher}, $self->{launcher};
}


sub ready {
    my ($self) = @_;

    return $self->{failed} if $self->{failed};

    if ($self->{launcher}) {
        return 0 if waitpid($self->{launcher}, WNOHANG) != $self->{launcher};

        delete $self->{launcher};
        return $self->{failed} = -1 if $?;
    }

    # its process, which is a group of its own, is there before it says so

    my $pid = $self->pid_file or return 0;

    $self->{pid} = $self->{group} = $pid;

    return $self->{failed} = -1 if one_is_gone($pid);
    return $self->workers >= ($self->{workers} // 1);
}


sub strike {
    my ($self, $signal) = @_;

    $self->{killed} = $signal eq 'KILL';

    return kill $signal => $self->{killed} ? map -$_, $self->groups
                                           : grep defined, @$self{qw(pid older)};
}


# A second generation: is it there?

sub replaced {
    my ($self) = @_;

    my $pid = $self->pid_file;

    return 0 if !$pid || $pid == $self->{pid};

    local $self->{pid} = $pid;
    return 0 if $self->workers < ($self->{workers} // 1);

    return $pid;
}


# Tells a generation to go, and returns its processes. The newer master is a child
# of the older. One that is killed stands still before: else it starts a worker anew
# whose death it hears of before its own, and that one stays.

sub dismiss {
    my ($self, $which, $signal) = @_;

    my $pid = delete $self->{$which};

    if ($signal eq 'KILL') {
        kill STOP => $pid;
        Idempotency::until_true(sub { Idempotency::slurp("/proc/$pid/stat") !~ /^\d+ \(.*\) [RSD] /s });
    }

    my @all = grep {
        $_ == $pid || $_ != $self->{pid}
                      && Idempotency::slurp("/proc/$_/stat")
                         =~ /^\d+ \(.*\) [A-Z] $pid /s
    } $self->alive;

    kill $signal, $signal eq 'KILL' ? @all : $pid;

    return @all;
}


sub over { return !grep { !one_is_gone($_) } @_ }


# --- and what waits for them ---------------------------------------------------

sub patient {
    my ($what, $code) = @_;

    my $r = Idempotency::until_true(\&$code) or die "$what\n";

    return $r;
}


sub down {
    my ($self, $signal) = @_;

    $self->strike($signal);

    return patient("nginx does not go, SIG$signal", sub { $self->gone });
}


sub configured {
    my ($self, %o) = @_;

    $self->{$_} = $o{$_} for keys %o;
    Idempotency::config($self, %$self) if %o;
}


sub up {
    my ($self, %o) = @_;

    my $from = length $self->log;

    $self->configured(%o);
    $self->ignite;

    return 1 if patient('nginx does not come', sub { $self->ready }) eq 1;

    die "nginx did not start again:\n" . substr $self->log, $from;
}


sub refused {
    my ($self, %o) = @_;

    my $from = length $self->log;

    $self->configured(%o);
    $self->ignite;

    return patient('nginx does not come', sub { $self->ready }) eq 1
           ? '' : substr $self->log, $from;
}


sub restart {
    my ($self, $signal, %o) = @_;

    $self->down($signal);

    return $self->up(%o);
}


sub sure {
    my ($self, @request) = @_;
    my $r;

    Idempotency::until_true(sub { ($r = $self->post(@request))->{status} != 503 });

    return $r;
}


sub upgrade {
    my ($self) = @_;

    kill USR2 => $self->{pid};

    my $pid = patient('no second generation', sub { $self->replaced });

    @$self{qw(older pid)} = ($self->{pid}, $pid);

    return $pid;
}


sub retire {
    my ($self, $signal) = @_;

    return $self->finish('older', $signal);
}


sub withdraw {
    my ($self, $signal) = @_;

    @$self{qw(older pid)} = @$self{qw(pid older)};
    $self->finish('older', $signal);

    # the first one has its file's name again
    return patient('no first generation', sub { $self->pid_file == $self->{pid} });
}


sub finish {
    my ($self, $which, $signal) = @_;

    my @all = $self->dismiss($which, $signal // 'QUIT');

    return patient('a generation does not go', sub { over(@all) });
}


sub stop {
    my ($self, $signal) = @_;

    return if $self->{stopped}++;

    local $?;
    local $Test::Builder::Level = $Test::Builder::Level + 1;

    return $self->ended(1) if $self->gone;

    $self->strike($self->{pid} ? $signal // 'TERM' : 'KILL');

    my $gone = Idempotency::until_true(sub { $self->gone });

    $self->strike('KILL') if !$gone;

    return $self->ended($gone);
}


1;
