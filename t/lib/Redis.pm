package Redis;

# Servers of a test's own on 127.0.0.1, which go with the object: a Redis or a
# Valkey by itself, with replicas and sentinels, or as a cluster; and the module
# that lets requests call scripts there (t/redis/caller.c).
#
#       my $r = Redis->new(args => [...], program => 'redis-server');
#           tls => [certificate, key, CA]: at $r->{tls} as well
#       $r->port, $r->path (of its unix socket), $r->pid, $r->log
#       $r->command(...)         by the unix socket: a connection of its own, that
#                                it stays whatever is set afterwards
#       $r->takes(...)           ... which a busy cluster may refuse for a while
#       $r->kill, $r->start      as a crash, and anew, where it was
#       $r->pause, $r->resume    it stands still
#       $r->info('field')
#       my @s = Redis->sentinels($master, 3);               $s->hasten (after a start)
#           dead_after => 1000: so many ms, from when they know each other; $s->dead_after
#       $r->leads($other, @s)    waits until it is the master of m, and the other one,
#                                if that lives, its replica, as all of these say
#       my @n = Redis->cluster(6);          three masters, then their replicas
#           announced => sub { ... }: of its port another one, that all shall ask
#       Redis->failovers('yes', @n)         replicas take over where a master dies; until
#                                           then none does, however busy the machine is
#       Redis->programs          those that are here
#       Redis->caller            the path of the module, compiled

use strict;
use warnings;

use Cwd qw(abs_path);
use File::Basename qw(dirname);
use File::Temp ();
use IO::Socket::UNIX;
use Idempotency;
use POSIX ();
use Resp;
use Time::HiRes qw(sleep time);

our @ISA = 'Resp';

my $root = dirname(dirname(dirname(abs_path(__FILE__))));
my $scratch = File::Temp->newdir('caller-XXXXXX', TMPDIR => 1);


# ... or were unpacked by util/valkey

my $unpacked = ($ENV{BUILD_DIR} // "$root/build") . '/valkey/bin';
$ENV{PATH} .= ":$unpacked" if -x "$unpacked/valkey-server";

sub programs { return Resp::servers() }


sub new {
    my ($class, %o) = @_;

    my $dir = File::Temp->newdir('redis-XXXXXX', TMPDIR => 1);

    # a worker may run as somebody else
    chmod 0755, $dir;

    my $self = bless {
        dir => $dir, owner => $$, port => $o{port} // free_port(),
        program => $o{program} // (programs())[0], args => $o{args} // [],
        conf => $o{conf},
    }, $class;

    if ($o{tls}) {
        $self->{tls} = free_port();

        my %tls = ('port' => $self->{tls}, 'auth-clients' => 'no');
        @tls{qw(cert-file key-file ca-cert-file)} = @{$o{tls}};

        $self->{args} = [(map { ("--tls-$_", $tls{$_}) } sort keys %tls), @{$self->{args}}];
    }

    return $self->start;
}


sub start {
    my ($self) = @_;

    my $dir = $self->{dir};
    my @conf;

    if (defined $self->{conf}) {
        open my $f, '>', "$dir/conf" or die "$dir/conf: $!";
        print $f delete $self->{conf};
        close $f;
    }

    @conf = "$dir/conf" if -e "$dir/conf";

    unlink "$dir/socket";

    my $pid = fork // die "fork: $!";

    if ($pid == 0) {
        open STDIN, '<', '/dev/null';
        open STDOUT, '>>', "$dir/log";
        open STDERR, '>&', \*STDOUT;
        exec $self->{program}, @conf, '--port', $self->{port}, '--bind', '127.0.0.1',
             '--unixsocket', "$dir/socket", '--unixsocketperm', 777, '--dir', "$dir",
             '--save', '', '--repl-diskless-sync-delay', 0, @{$self->{args}}
            or POSIX::_exit(1);
    }

    $self->{pid} = $pid;
    delete $self->{admin};

    until_true { eval { $self->command('PING') } } patience()
        or die "no $self->{program}: " . slurp("$dir/log");

    return $self;
}


# It may have been cut off by what was said before.

sub command {
    my ($self, @words) = @_;

    local $SIG{PIPE} = 'IGNORE';

    for my $try (1, 2) {
        my $old = $self->{admin};
        my $reply = eval { ($self->{admin} //= $self->connect)->command(@words) };

        return $reply unless $@;

        delete $self->{admin};
        die $@ unless $old;
    }
}


# A node refuses a slot if its replicas are not connected yet (Valkey 8.1), or the
# other nodes don't see it.

sub takes {
    my ($self, @words) = @_;

    my $said;

    until_true {
        $said = $self->command(@words);
        $said !~ /^(?:ERR Target instance replied with error: )?(?:NOREPLICAS|CLUSTERDOWN|TRYAGAIN|LOADING|MASTERDOWN|IOERR)/;
    };

    $said =~ /^(?:OK|NOKEY)$/ or die "@words: $said\n" . $self->log;
}


sub connect {
    my ($self) = @_;

    my $s = IO::Socket::UNIX->new(Peer => "$self->{dir}/socket") or die "connect: $!";

    return bless { socket => $s, read => '' }, 'Resp';
}


sub port { return $_[0]{port} }
sub path { return "$_[0]{dir}/socket" }
sub pid { return $_[0]{pid} }
sub log { return slurp("$_[0]{dir}/log") }
sub pause { kill 'STOP', $_[0]{pid} }
sub resume { kill 'CONT', $_[0]{pid} }


sub kill {
    my ($self) = @_;

    my $pid = delete $self->{pid} or return;

    CORE::kill('KILL', $pid);
    waitpid $pid, 0;
}


sub info {
    my ($self, $field) = @_;

    return ($self->command('INFO', 'everything') // '') =~ /^\Q$field\E:(.*?)\r?$/m ? $1 : undef;
}


# --- sentinels ----------------------------------------------------------------

sub sentinels {
    my ($class, $master, $n, %o) = @_;

    my $conf = 'sentinel monitor m 127.0.0.1 ' . ($o{port} // $master->port) . ' ' . (int($n / 2) + 1) . "\n"
               . "sentinel down-after-milliseconds m 3600000\n"
               . "sentinel failover-timeout m 4000\n";

    my @s = map { $class->new(conf => $conf, tls => $o{tls}, program => $o{program}, args => ['--sentinel', @{$o{args} // []}]) } 1 .. $n;

    $_->hasten for @s;

    # until then they would not agree
    for my $s (@s) {
        until_true {
            my %m = @{$s->command('SENTINEL', 'MASTER', 'm')};
            $m{'num-other-sentinels'} == $n - 1 && $m{'num-slaves'} == ($o{replicas} // 1);
        } patience() or die 'no sentinels: ' . $s->log;
    }

    $_->dead_after($o{dead_after} // 1000) for @s;

    return @s;
}


# It looks at what it watches more often than it does by itself, until it ends; and if
# it has stood still for two seconds, it does nothing for two more, not for thirty.

sub hasten {
    my ($self) = @_;

    $self->command(qw(SENTINEL DEBUG INFO-PERIOD 500 PUBLISH-PERIOD 500 TILT-PERIOD 2000)) eq 'OK'
        or die 'SENTINEL DEBUG';
}


# It takes a master for dead that says nothing for so long: a second, to begin with.
# On a busy machine that befalls one that is well, and then one that has just come
# back is made the master.

sub dead_after {
    my ($self, $msec) = @_;

    $self->command(qw(SENTINEL SET m down-after-milliseconds), $msec) eq 'OK' or die 'SENTINEL SET';
}


# On a busy machine they give up, or change by themselves. While the other one is
# dead they try again; who is its replica is made the master by telling them, again
# and again.

sub leads {
    my ($self, $other, @s) = @_;

    my $follows = sub {
        my ($to, $who) = @_;

        return ($who->info('role') // '') eq 'slave' && ($to->info('slave0') // '') =~ /state=online/;
    };

    return until_true {
        my %said = map { (($_->command(qw(SENTINEL GET-MASTER-ADDR-BY-NAME m)) // [])->[1] // '') => 1 } @s;

        return 0 if keys %said > 1;

        if ($said{$self->port}) {
            my $role = $self->info('role') // '';

            # a sentinel that had not heard of it yet made it a replica again
            $self->command(qw(REPLICAOF NO ONE)) if $role eq 'slave';

            return $role eq 'master' && (!$other->pid || $follows->($self, $other));
        }

        if ($other->pid && $follows->($other, $self)) {
            $s[0]->command(qw(SENTINEL FAILOVER m));
            sleep 1;
        }

        return 0;
    } 3 * patience();
}


# --- clusters -----------------------------------------------------------------

sub cluster {
    my ($class, $n, %o) = @_;

    my @tls = $o{tls} ? qw(--tls-cluster yes --tls-replication yes) : ();
    my $port = $o{tls} ? 'tls' : 'port';

    my @nodes = map {
        my ($own, $bus) = (free_port(), free_port());
        my @announced = $o{announced} ? ('--cluster-announce-port', $o{announced}->($own)) : ();
        my $node = $class->new(program => $o{program}, tls => $o{tls}, port => $own,
                               args => ['--cluster-enabled', 'yes', '--cluster-port', $bus, '--cluster-node-timeout', 1000,
                                        @announced, @tls, @{$o{args} // []}]);
        $node->{bus} = $bus;
        $node->{id} = $node->command('CLUSTER', 'MYID');
        $node;
    } 1 .. $n;

    $class->failovers('no', @nodes);

    my $masters = $n > 3 ? 3 : $n;
    my @cut = map { int(16384 * $_ / $masters) } 0 .. $masters;

    for my $i (0 .. $#nodes) {
        $nodes[$i]->command('CLUSTER', 'SET-CONFIG-EPOCH', $i + 1);
        $nodes[$i]->command('CLUSTER', 'ADDSLOTSRANGE', $cut[$i], $cut[$i + 1] - 1) if $i < $masters;
    }

    # who stands still meanwhile is forgotten by the other one
    until_true {
        my @apart = grep { !$_->knows($nodes[0]) || !$nodes[0]->knows($_) } @nodes;

        $_->command('CLUSTER', 'MEET', '127.0.0.1', $nodes[0]{$port}, $nodes[0]{bus}) for @apart;
        !@apart;
    } patience() or die 'they do not meet';

    for my $i ($masters .. $#nodes) {
        until_true {
            $nodes[$i]->command('CLUSTER', 'REPLICATE', $nodes[$i - $masters]{id}) eq 'OK';
        } patience() or die 'no replica';
    }

    for my $node (@nodes) {
        until_true {
            my $info = $node->command('CLUSTER', 'INFO');
            $info =~ /^cluster_state:ok/m && $info =~ /^cluster_known_nodes:$n\r/m
                && $info =~ /^cluster_slots_ok:16384/m;
        } patience() or die 'no cluster: ' . $node->log;
    }

    for my $i (0 .. $masters - 1) {
        next if $n == $masters;
        until_true { ($nodes[$i]->info('connected_slaves') // 0) >= 1 } patience()
            or die 'no replicas: ' . $nodes[$i]->log;
    }

    return @nodes;
}


sub knows { return $_[0]->command('CLUSTER', 'NODES') =~ /^$_[1]{id} \S+ (?!\S*handshake)/m }


sub failovers {
    my ($class, $allowed, @nodes) = @_;

    $_->takes(qw(CONFIG SET cluster-replica-no-failover), $allowed eq 'yes' ? 'no' : 'yes') for @nodes;
}


# --- the module ---------------------------------------------------------------

# Compiled as the module was; undef, if there is no tree.

sub caller {
    my $tree = ($ENV{BUILD_DIR} // "$root/build") . '/tree';

    return undef unless -f "$tree/objs/Makefile";
    return "$scratch/caller.so" if -e "$scratch/caller.so";

    open my $f, '>', "$scratch/Makefile" or die "$scratch/Makefile: $!";
    print $f "include objs/Makefile\n",
             "caller:\n\t\$(CC) \$(CFLAGS) -fPIC -shared \$(ALL_INCS) -I$root/src",
             " -o $scratch/caller.so $root/t/redis/caller.c\n";
    close $f;

    my $cc = $ENV{CC} // 'cc';
    my $said = `make -s -C '$tree' -f '$scratch/Makefile' CC='$cc' caller 2>&1`;
    die $said if $?;

    return "$scratch/caller.so";
}


1;
