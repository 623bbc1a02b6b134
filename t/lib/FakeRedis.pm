package FakeRedis;

# A server that says what a test wants it to say, where a Redis would only do so
# in a bad moment. It greets as one does; what it answers to a script stands in
# the script's key:
#
#    say:BYTES            these (BYTES as in a URL), once; more by "|": the first
#                         time that key is called, the second ..., the last for ever
#    slow:BYTES           these, each by itself
#    cut:BYTES            these, and then it closes the connection
#    none                 nothing
#    -                    the key and the arguments, as a Redis' script might
#
#       my $f = FakeRedis->new(%answers);   HELLO => "-ERR no\r\n": to each; a list:
#                                           one after the other, '' closes the
#                                           connection; a sub: what it returns,
#                                           undef is nothing. CONNECT: said at
#                                           once, then it closes
#       $f->port, $f->commands (all that were said, a list of lists),
#       $f->connections (how many there were), $f->resets (how many were reset)
#       $f->open: so many are open
#       $f->stop, $f->start(%answers)        at the same port
#       FakeRedis->at('127.0.0.2', $port)    elsewhere
#       names($port, NAME => ADDRESS, ...)   a DNS server; anew with each call

use strict;
use warnings;

use File::Temp ();
use Idempotency;
use IO::Select;
use IO::Socket::INET;
use POSIX ();
use Socket qw(IPPROTO_TCP TCP_NODELAY inet_aton);
use Time::HiRes qw(sleep time);


sub new {
    my ($class, %answers) = @_;

    return $class->at('127.0.0.1', free_port(), %answers);
}


sub at {
    my ($class, $host, $port, %answers) = @_;

    my $self = bless { dir => File::Temp->newdir('fake-XXXXXX', TMPDIR => 1),
                       host => $host, port => $port }, $class;

    return $self->start(%answers);
}


sub port { return $_[0]{port} }


sub start {
    my ($self, %answers) = @_;

    my $listen = IO::Socket::INET->new(Listen => 511, LocalAddr => $self->{host},
                                       LocalPort => $self->{port}, ReuseAddr => 1)
        or die "listen: $!";

    $self->{pid} = child(sub { serve($self, $listen, %answers) });
    close $listen;

    return $self;
}


sub stop {
    my ($self) = @_;

    my $pid = delete $self->{pid};

    kill 'KILL', $pid;
    waitpid $pid, 0;
}


sub lines {
    my ($self) = @_;

    return split /\n/, slurp("$self->{dir}/log");
}


sub commands {
    my ($self) = @_;

    return map { [map { s/%([0-9a-f]{2})/chr hex $1/ger } split / /] }
           grep !/^\*/, $self->lines;
}


sub connections { return scalar grep $_ eq '*connected', $_[0]->lines }

sub open {
    my ($self) = @_;

    my $n = 0;

    for ($self->lines) {
        $n = 0 if $_ eq '*started';
        $n++ if $_ eq '*connected';
        $n-- if $_ eq '*closed' || $_ eq '*reset';
    }

    return $n;
}
sub resets { return scalar grep $_ eq '*reset', $_[0]->lines }


# --- a DNS server ---------------------------------------------------------------

my $names;

sub names {
    my ($port, %names) = @_;

    if ($names) {
        kill 'KILL', $names;
        waitpid $names, 0;
    }

    my $s = IO::Socket::INET->new(Proto => 'udp', LocalAddr => '127.0.0.1', LocalPort => $port)
        or die "names: $!";

    $names = child(sub {
        while (1) {
            my $from = $s->recv(my $query, 512) // next;
            my ($id, $at, @labels) = (substr($query, 0, 2), 12);

            while (my $n = ord substr $query, $at, 1) {
                push @labels, substr $query, $at + 1, $n;
                $at += $n + 1;
            }

            my $question = substr $query, 12, $at + 5 - 12;
            my $is_a = substr($query, $at + 1, 2) eq "\0\1";
            my $address = $names{join '.', @labels};
            my $found = $is_a && $address;

            $s->send($id . pack('n5', $address ? 0x8180 : 0x8183, 1, $found ? 1 : 0, 0, 0) . $question
                     . ($found ? pack('n3Nn', 0xc00c, 1, 1, 1, 4) . inet_aton($address) : ''), 0, $from);
        }
    });
}


# --- the server itself --------------------------------------------------------

my %greeting = (
    AUTH => "+OK\r\n",
    HELLO => "*2\r\n+server\r\n+fake\r\n",
    SELECT => "+OK\r\n",
    ROLE => "*3\r\n+master\r\n:0\r\n*0\r\n",
    PING => "+PONG\r\n",
    INFO => bulk("run_id:" . 'f' x 40 . "\r\nmaxmemory_policy:noeviction\r\naof_enabled:1\r\n"
                 . "evicted_keys:0\r\n"),
);


sub bulk { return '$' . length($_[0]) . "\r\n$_[0]\r\n" }


sub serve {
    my ($self, $listen, %answers) = @_;

    my %conn;
    my $state = { answers => { %greeting, %answers }, times => {} };
    my $select = IO::Select->new($listen);

    CORE::open my $log, '>>', "$self->{dir}/log" or die "log: $!";
    $log->autoflush(1);
    print $log "*started\n";

    $SIG{PIPE} = 'IGNORE';

    while (1) {
        for my $s ($select->can_read) {
            if ($s == $listen) {
                my $c = $listen->accept or next;
                setsockopt $c, IPPROTO_TCP, TCP_NODELAY, 1;
                $conn{fileno $c} = '';
                $select->add($c);
                print $log "*connected\n";

                if (defined $state->{answers}{CONNECT}) {
                    syswrite $c, $state->{answers}{CONNECT};
                    $select->remove($c);
                    close $c;
                    print $log "*closed\n";
                }

                next;
            }

            my $n = sysread $s, $conn{fileno $s}, 65536, length $conn{fileno $s};

            if (!$n) {
                print $log defined $n ? "*closed\n" : "*reset\n";
                $select->remove($s);
                close $s;
                next;
            }

            while (my @words = command(\$conn{fileno $s})) {
                print $log join(' ', map { s/([^\w:.-])/sprintf '%%%02x', ord $1/ger } @words), "\n";

                next if answer($s, $state, @words);

                $select->remove($s);
                close $s;
                print $log "*closed\n";
                last;
            }
        }
    }
}


# Takes one off, if it is there.

sub command {
    my ($in) = @_;

    $$in =~ /^\*(\d+)\r\n/ or return;

    my ($left, $at, @words) = ($1, length $&);

    while ($left--) {
        pos($$in) = $at;
        $$in =~ /\G\$(\d+)\r\n/g or return;
        $at = pos($$in) + $1 + 2;
        return if length $$in < $at;
        push @words, substr $$in, $at - $1 - 2, $1;
    }

    substr $$in, 0, $at, '';

    return @words;
}


# False: the connection ends.

sub answer {
    my ($s, $state, $name, @args) = @_;

    my $said = $state->{answers}{$name};

    if (defined $said) {
        $said = shift @$said // '' if ref $said eq 'ARRAY';
        $said = $said->(@args) // return 1 if ref $said eq 'CODE';
        syswrite $s, $said;
        return $said ne '';
    }

    if ($name eq 'TIME') {
        my $now = time;
        syswrite $s, "*2\r\n" . bulk(int $now) . bulk(int(($now - int $now) * 1e6));
        return 1;
    }

    my ($how, $bytes) = ($args[2] // '') =~ /^(\w+)(?::(.*))?$/s;

    if (!defined $how || $name !~ /^EVAL/) {
        my @said = ($name, @args);
        syswrite $s, '*' . @said . "\r\n" . join '', map bulk($_), @said;
        return 1;
    }

    return 1 if $how eq 'none';

    my @said = split /\|/, $bytes // '', -1;
    my $times = $state->{times}{$args[2]}++;
    my $say = $said[$times < @said ? $times : $#said] // '';

    $say =~ s/%([0-9A-Fa-f]{2})/chr hex $1/ge;

    if ($how eq 'slow') {
        for (split //, $say) {
            syswrite $s, $_;
            sleep 0.001;
        }

        return 1;
    }

    while (length $say) {
        $s->blocking(1);
        my $n = syswrite $s, $say or last;
        substr $say, 0, $n, '';
    }

    return $how ne 'cut';
}


1;
