package Topology;

# What stands behind several nginx: one Redis, a master with replicas and sentinels,
# or a cluster; with proxies in between; and what befalls it.
#
#       my $t = Topology->new('sentinel', program => 'redis-server', forgets => 0);
#       $t->block($i)          what idempotency_redis says of it, at nginx number $i
#       $t->replicas           so many could become the master of something
#       $t->troubles           name => sub { ... }, which returns when it is over
#       $t->kills, $t->failovers, $t->moved (slots)
#       $t->lost($from, $to)   did a master change meanwhile, so that it may have
#                              forgotten what its replicas had not?
#
# All have on disk what they have said, unless forgets is set.

use strict;
use warnings;

use Between;
use Idempotency;
use Redis;
use Time::HiRes qw(sleep time);


sub new {
    my ($class, $kind, %o) = @_;

    my $self = bless { %o, kills => 0, failovers => 0, moved => 0, between => [], lost => [] },
                     'Topology::' . ucfirst $kind;

    $self->{args} = $o{forgets} ? [] : [qw(--appendonly yes --appendfsync always)];
    $self->make;

    return $self;
}


sub kills { return $_[0]{kills} }
sub failovers { return $_[0]{failovers} }
sub moved { return $_[0]{moved} }


# A port of its own for a server, and the one in front of it.

sub between {
    my ($self, $port) = @_;

    push @{$self->{between}}, Between->new($port);

    return $self->{between}[-1]->port;
}


sub kill {
    my ($self, $node) = @_;

    $node->kill;
    $self->{kills}++;
}


sub lost {
    my ($self, $from, $to) = @_;

    return grep { $from < $_->[1] && $to > $_->[0] } @{$self->{lost}};
}


# A moment before, something may not have been replicated yet.

sub forgetting {
    my ($self, $code) = @_;

    my $from = time - 0.5;

    $code->();
    push @{$self->{lost}}, [$from, time];
}


# What becomes of what goes between the clients and one of the servers.

sub partitions {
    my ($self) = @_;

    return map {
        my $how = $_;

        $how => sub {
            my $b = $self->{between}[rand @{$self->{between}}];

            $b->now($how, 'clients');
            return if $how eq 'cut';
            sleep .1 + rand 1.5;
            $b->now('flow', 'clients');
        };
    } qw(late deaf mute away cut);
}


sub wait_for {
    my ($self, $what, $code) = @_;

    until_true { eval { $code->() } } or die "$what\n" . join '', map $_->log, $self->all;
}


# --- one server ------------------------------------------------------------------

# Each nginx has a way of its own to it.

package Topology::Standalone;

use strict;
use warnings;

use Time::HiRes qw(sleep);

our @ISA = 'Topology';

sub make {
    my ($self) = @_;

    $self->{redis} = Redis->new(program => $self->{program}, args => $self->{args});
}


sub block {
    my ($self, $i) = @_;

    my $between = $self->{between};

    $self->between($self->{redis}->port) until $between->[$i];

    return 'server 127.0.0.1:' . $between->[$i]->port . ';';
}


sub replicas { return 0 }
sub all { return $_[0]{redis} }
sub empty { return $_[0]{redis}->command('FLUSHALL') }


# An empty one, where it was.

sub another {
    my ($self) = @_;

    $self->kill($self->{redis});
    $self->{redis} = Redis->new(program => $self->{program}, port => $self->{redis}->port, args => $self->{args});
}


sub troubles {
    my ($self) = @_;

    return (
        $self->partitions,
        redis => sub { $self->kill($self->{redis}); sleep rand 1; $self->{redis}->start },
        pause => sub { $self->{redis}->pause; sleep .2 + rand 1.5; $self->{redis}->resume },
    );
}


# --- a master, replicas, sentinels --------------------------------------------------

# They know each other by the proxies in front of them. What they are told is in a
# file, which they keep up to date.

package Topology::Sentinel;

use strict;
use warnings;

use Idempotency;
use Time::HiRes qw(sleep);

our @ISA = 'Topology';

sub make {
    my ($self) = @_;

    my @args = @{$self->{args}};
    my @nodes;

    for my $i (0 .. $self->replicas) {
        my $port = free_port();
        my $conf = 'replica-announce-ip 127.0.0.1' . "\nreplica-announce-port " . $self->between($port) . "\n"
                   . ($i ? 'replicaof 127.0.0.1 ' . $self->{between}[0]->port . "\n" : '');

        push @nodes, Redis->new(program => $self->{program}, port => $port, conf => $conf, args => \@args);
    }

    $self->{nodes} = \@nodes;
    $self->{sentinels} = [ Redis->sentinels($nodes[0], 3, program => $self->{program},
                                            port => $self->{between}[0]->port, replicas => $self->replicas) ];
    $self->well;
}


sub replicas { return 2 }
sub all { return map @{$_[0]{$_}}, qw(nodes sentinels) }


sub block {
    my ($self) = @_;

    return 'mode sentinel; master m; server ' . join(' ', map '127.0.0.1:' . $_->port, @{$self->{sentinels}}) . ';';
}


# Its number, if the sentinels agree.

sub master {
    my ($self) = @_;

    my %said = map { eval { $_->command(qw(SENTINEL GET-MASTER-ADDR-BY-NAME m))->[1] } // '' => 1 }
               grep $_->pid, @{$self->{sentinels}};
    my ($port, @more) = keys %said;

    return undef if @more;

    my ($i) = grep { $self->{between}[$_]->port eq $port } 0 .. $self->replicas;

    return $i;
}


# All is as it should be: the next blow is a single one.

sub well {
    my ($self) = @_;

    my $nodes = $self->{nodes};

    $self->wait_for('the replicas do not come', sub {
        my $m = $self->master // return 0;
        my $said = $nodes->[$m]->command('INFO', 'replication');

        return 0 if $said !~ /^role:master/m;
        return 0 if (() = $said =~ /^slave\d+:.*state=online.*lag=[01]\b/mg) != $self->replicas;
        return 0 if grep { $_ != $m && ($nodes->[$_]->info('master_link_status') // '') ne 'up' } 0 .. $#$nodes;

        for (@{$self->{sentinels}}) {
            my %m = @{$_->command(qw(SENTINEL MASTER m))};
            my @r = @{$_->command(qw(SENTINEL REPLICAS m))};

            return 0 if $m{flags} ne 'master' || @r != $self->replicas
                        || $m{'num-other-sentinels'} != $#{$self->{sentinels}};
            return 0 if grep { my %r = @$_; $r{flags} ne 'slave' || $r{'master-link-status'} ne 'ok' } @r;
        }

        return 1;
    });
}


# While this is done, another one becomes the master.

sub failover {
    my ($self, $begin, $end) = @_;

    $self->well;
    $self->forgetting(sub {
        my $old = $self->master;
        my $node = $self->{nodes}[$old];

        $begin->($node, $self->{between}[$old]);
        $self->wait_for('no other master', sub { my $m = $self->master; defined $m && $m != $old });
        $self->{failovers}++;
        $end->($node, $self->{between}[$old]);
        $self->well;
    });
}


sub troubles {
    my ($self) = @_;

    my ($nodes, $sentinels) = @$self{qw(nodes sentinels)};

    return (
        $self->partitions,
        'the master dies' => sub {
            $self->failover(sub { $self->kill($_[0]) }, sub { sleep rand 1; $_[0]->start });
        },
        'the master stands still' => sub {
            $self->failover(sub { $_[0]->pause }, sub { sleep rand 1; $_[0]->resume });
        },
        'the master is told to go' => sub {
            my $old = $self->master;

            # on a busy machine they may give it up
            $self->failover(sub {
                $self->wait_for('no failover', sub {
                    $sentinels->[rand @$sentinels]->command(qw(SENTINEL FAILOVER m));
                    until_true { my $m = $self->master; defined $m && $m != $old } 20;
                });
            }, sub { });
        },

        # nginx alone reaches it
        'the master is alone' => sub {
            $self->failover(sub { $_[1]->now('away', $_) for qw(replicas sentinels) },
                            sub { sleep rand 1; $_[1]->now('flow', $_) for qw(replicas sentinels) });
        },

        # what it says its replicas don't hear, then it dies
        'the master is not heard' => sub {
            $self->failover(sub { $_[1]->now('mute', 'replicas'); sleep .3 + rand 1; $self->kill($_[0]) },
                            sub { $_[1]->now('flow', 'replicas'); $_[0]->start });
        },
        'the master starts anew' => sub {
            $self->forgetting(sub {
                my $node = $nodes->[$self->master];

                $self->kill($node);
                $node->start;
                $self->well;
            });
        },
        'a replica dies' => sub {
            my $m = $self->master;
            my ($node) = grep { $_ != $nodes->[$m] } sort { rand() <=> .5 } @$nodes;

            $self->kill($node);
            sleep rand 2;
            $node->start;
            $self->well;
        },
        'a sentinel dies' => sub {
            my $s = $sentinels->[rand @$sentinels];

            $self->kill($s);
            sleep rand 2;
            $s->start->hasten;
            $self->well;
        },
    );
}


# --- a cluster ----------------------------------------------------------------------

package Topology::Cluster;

use strict;
use warnings;

use Idempotency;
use Time::HiRes qw(sleep);

our @ISA = 'Topology';

sub make {
    my ($self) = @_;

    $self->{nodes} = [ Redis->cluster(6, program => $self->{program}, args => $self->{args},
                                      announced => sub { $self->between($_[0]) }) ];
    Redis->failovers('yes', @{$self->{nodes}});
    $self->well;
}


sub replicas { return 1 }
sub all { return @{$_[0]{nodes}} }


sub block {
    my ($self) = @_;

    return 'mode cluster; server ' . join(' ', map '127.0.0.1:' . $_->port, @{$self->{between}}) . ';';
}


# As one of them sees it: { id => { flags, master, slots } }.

sub seen_by {
    my ($node) = @_;

    my %seen;

    for (split /\n/, $node->command(qw(CLUSTER NODES))) {
        my ($id, undef, $flags, $master, undef, undef, undef, $link, @slots) = split ' ';

        $seen{$id} = { flags => $flags, master => $master, slots => "@slots", link => $link };
    }

    return \%seen;
}


sub well {
    my ($self) = @_;

    my $nodes = $self->{nodes};

    $self->wait_for('the cluster is not well', sub {
        my %views;

        for my $node (@$nodes) {
            return 0 if $node->command(qw(CLUSTER INFO)) !~ /^cluster_state:ok/m;

            my $seen = seen_by($node);

            return 0 if keys %$seen != @$nodes;
            return 0 if grep { $_->{flags} =~ /fail|handshake|noaddr/ || $_->{link} ne 'connected' } values %$seen;
            $views{join ' ', map { "$_ $seen->{$_}{master} " . $seen->{$_}{slots} =~ s/ ?\[.*//r } sort keys %$seen}++;

            my $said = $node->command('INFO', 'replication');

            return 0 if $said =~ /^role:master/m ? $said !~ /^slave0:.*state=online.*lag=[01]\b/m
                                                 : $said !~ /^master_link_status:up/m;
        }

        return keys %views == 1;
    });
}


# The numbers of those that have slots, seen by anybody who is not one of these.

sub masters {
    my ($self, @not) = @_;

    my $nodes = $self->{nodes};
    my ($by) = grep { my $n = $_; $n->pid && !grep $_ == $n, @not } @$nodes;
    my $seen = seen_by($by);

    return grep { my $s = $seen->{$nodes->[$_]{id}};
                  $s->{flags} =~ /master/ && $s->{flags} !~ /fail/ && $s->{slots} =~ /\d/ } 0 .. $#$nodes;
}


sub failover {
    my ($self, $begin, $end, $old) = @_;

    $self->forgetting(sub {
        my @masters = $self->masters;
        $old //= $masters[rand @masters];
        my $node = $self->{nodes}[$old];

        $begin->($node, $self->{between}[$old]);
        $self->wait_for('no other master', sub {
            my @now = $self->masters($node);

            return @now == @masters && !grep $_ == $old, @now;
        });
        $self->{failovers}++;
        $end->($node, $self->{between}[$old]);
        $self->well;
    });
}


# So many slots with keys, and the keys, from one master to another, as redis-cli
# does it. Meanwhile no replica takes over, however busy the machine is.

sub carry {
    my ($self, $from, $to, $n) = @_;

    my @others = grep { $_ != $from && $_ != $to } map $self->{nodes}[$_], $self->masters;
    my %slots = map { $from->command(qw(CLUSTER KEYSLOT), $_) => 1 } @{$from->command(qw(KEYS *))};
    my @slots = sort { rand() <=> .5 } keys %slots;

    Redis->failovers('no', @{$self->{nodes}});

    for my $slot (splice @slots, 0, $n) {
        $to->takes(qw(CLUSTER SETSLOT), $slot, 'IMPORTING', $from->{id});
        $from->takes(qw(CLUSTER SETSLOT), $slot, 'MIGRATING', $to->{id});

        my $empty = sub {
            while (my @keys = @{$from->command(qw(CLUSTER GETKEYSINSLOT), $slot, 10)}) {
                $from->takes('MIGRATE', '127.0.0.1', $to->port, '', 0, 5000, 'KEYS', @keys);
            }
        };

        $empty->();
        $to->takes(qw(CLUSTER SETSLOT), $slot, 'NODE', $to->{id});

        # a key may have come meanwhile
        until (eval { $from->takes(qw(CLUSTER SETSLOT), $slot, 'NODE', $to->{id}); 1 }) {
            die $@ if $@ !~ /hold keys/;
            $empty->();
        }

        $_->takes(qw(CLUSTER SETSLOT), $slot, 'NODE', $to->{id}) for @others;
        $self->{moved}++;
    }

    Redis->failovers('yes', @{$self->{nodes}});
}


sub reshard {
    my ($self) = @_;

    $self->carry((map $self->{nodes}[$_], (sort { rand() <=> .5 } $self->masters)[0, 1]), 60);
    $self->well;
}


sub troubles {
    my ($self) = @_;

    my $nodes = $self->{nodes};

    return (
        $self->partitions,
        'a master dies' => sub {
            $self->failover(sub { $self->kill($_[0]) }, sub { sleep rand 1; $_[0]->start });
        },
        'a master stands still' => sub {
            $self->failover(sub { $_[0]->pause }, sub { sleep rand 1; $_[0]->resume });
        },
        'a master is not heard' => sub {
            $self->failover(sub { $_[1]->now('mute', 'replicas'); sleep .3 + rand 1; $self->kill($_[0]) },
                            sub { $_[1]->now('flow', 'replicas'); $_[0]->start });
        },
        'a master is told to go' => sub {
            $self->failover(sub {
                my $replica = (grep { seen_by($nodes->[0])->{$_->{id}}{master} eq $_[0]{id} } @$nodes)[0];

                $self->wait_for('no failover', sub {
                    my $leads = sub { ($replica->info('role') // '') eq 'master' };

                    return 1 if $leads->();
                    $replica->command(qw(CLUSTER FAILOVER));
                    until_true { $leads->() } 10;
                });
            }, sub { });
        },
        'a master starts anew' => sub {
            $self->forgetting(sub {
                my $node = $nodes->[($self->masters)[rand 3]];

                $self->kill($node);
                $node->start;
                $self->well;
            });
        },
        'slots move' => sub { $self->reshard },
        'slots move again' => sub { $self->reshard },
    );
}


1;
