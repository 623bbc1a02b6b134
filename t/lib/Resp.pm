# A connection to a Redis, as plain as can be: a command, its reply; and a server
# of a test's own, on a socket, that goes with the object.

package Resp;

use strict;
use warnings;

use File::Temp ();
use IO::Select;
use IO::Socket::UNIX;
use POSIX ();
use Time::HiRes qw(sleep time);


sub servers {
    return grep { my $p = $_; grep -x "$_/$p", split /:/, $ENV{PATH} } qw(redis-server valkey-server);
}


sub start {
    my ($class, %with) = @_;

    my $dir = File::Temp->newdir('redis-XXXXXX', TMPDIR => 1);
    my $pid = fork // die "fork: $!";

    if ($pid == 0) {
        open STDOUT, '>', "$dir/log";
        open STDERR, '>&', \*STDOUT;
        exec $with{program}, '--port', 0, '--bind', '127.0.0.1', '--unixsocket', "$dir/socket", '--dir', "$dir",
             '--save', '', @{$with{args} // []} or POSIX::_exit(1);
    }

    my $self = bless { dir => $dir, pid => $pid, owner => $$ }, $class;
    my $until = time + 30;

    sleep 0.01 until eval { $self->connect->command('PING') eq 'PONG' } || time > $until;

    return $self;
}


sub connect {
    my ($self) = @_;

    my $s = IO::Socket::UNIX->new(Peer => "$self->{dir}/socket") or die "connect: $!";
    return bless { socket => $s, read => '' }, ref $self;
}


sub command {
    my ($self, @words) = @_;

    my $request = '*' . @words . "\r\n" . join '', map '$' . length($_) . "\r\n$_\r\n", @words;
    my $s = $self->{socket};

    print $s $request or die "write: $!";
    $s->flush;

    return $self->reply;
}


# An error is its text, nil is undef.

sub reply {
    my ($self) = @_;

    my $line = $self->line;
    my ($type, $rest) = $line =~ /^([-+:\$*])(.*)$/s or die "reply: $line";

    return $rest if $type =~ /[-+:]/;
    return undef if $rest < 0;
    return [ map $self->reply, 1 .. $rest ] if $type eq '*';

    return substr $self->take($rest + 2), 0, -2;
}


sub line {
    my ($self) = @_;

    my $at;
    $self->more while ($at = index $self->{read}, "\r\n") < 0;

    return substr $self->take($at + 2), 0, -2;
}


sub take {
    my ($self, $n) = @_;

    $self->more while length $self->{read} < $n;
    return substr $self->{read}, 0, $n, '';
}


sub more {
    my ($self) = @_;

    sysread $self->{socket}, $self->{read}, 65536, length $self->{read} or die "read: $!";
}


# How many messages come, the first of them within this time.

sub heard {
    my ($self, $within) = @_;

    my $n = 0;
    my $select = IO::Select->new($self->{socket});

    while (length $self->{read} || $select->can_read($n ? 0.05 : $within)) {
        $self->reply;
        $n++;
    }

    return $n;
}


sub DESTROY {
    my ($self) = @_;

    return if !$self->{pid} || $self->{owner} != $$;

    local ($?, $!);
    kill 'KILL', $self->{pid};
    waitpid $self->{pid}, 0;
}


1;
