package Machine;

# What a test needs of the machine that it runs on: processes that end with it,
# files, ports that are nobody else's, and waiting for what others do.
#
#    process(sub { ... }): its pid.
#    child(sub { ... }): the pid of a process that ends with the test at the latest.
#    output(command): did it succeed, and what did it say?
#    slurp(file): its bytes, or none. spew(file, bytes) makes it.
#    scratch(): a directory that goes with the test.
#    certificate(): the directory of cert.pem, for localhost, and key.pem.
#    free_port(); dead_port(): nothing listens there.
#    Whatever waits does so for patience() seconds: far longer than any machine
#      takes, so that it ends a test that fails, and none that is slow.
#    until_true { ... } seconds: polls, returns what the block returned.
#    within SECONDS, sub { ... }: for what holds for a while only. Does it until
#      that took less than so long, and returns what it then returned.

use strict;
use warnings;

use Exporter 'import';
use File::Basename qw(dirname);
use File::Path qw(make_path);
use File::Temp ();
use IO::Socket::INET;
use POSIX ();
use Socket qw(PF_INET SOCK_STREAM INADDR_LOOPBACK pack_sockaddr_in
              unpack_sockaddr_in);
use Time::HiRes qw(time sleep);

our @EXPORT = qw(process child output slurp spew scratch certificate free_port
                 dead_port patience until_true within);

my $tmp = File::Temp->newdir('idempotency-XXXXXX', TMPDIR => 1);
my ($owner, @children) = ($$);

# A worker that runs as another user must get through to its files.
chmod 0755, $tmp;


# An END block, and a signal still runs it: nothing outlives the test.

$SIG{$_} = sub { exit 1 } for qw(INT TERM HUP PIPE);

END {
    if ($$ == $owner) {
        local $?;

        # the number of one that has ended may be another process' by now

        @children = grep { waitpid($_, POSIX::WNOHANG()) == 0 } @children;

        kill KILL => @children;
        waitpid $_, 0 for @children;
    }
}


sub scratch { return $tmp }

sub process {
    my ($code) = @_;

    my $pid = fork // die "fork: $!";

    if (!$pid) {
        $SIG{$_} = 'DEFAULT' for qw(INT TERM HUP PIPE);
        $code->();
        POSIX::_exit(0);
    }

    return $pid;
}


sub child {
    push @children, process(@_);

    return $children[-1];
}


# Did it succeed, and what did it say?

sub output {
    my (@command) = @_;

    my $pid = open(my $out, '-|') // die "fork: $!";

    if (!$pid) {
        open STDERR, '>&', \*STDOUT;
        exec @command or POSIX::_exit(127);
    }

    binmode $out;
    my $text = do { local $/; <$out> } // '';

    return (close $out, $text);
}


sub slurp {
    open my $f, '<:raw', $_[0] or return '';
    local $/;

    return scalar(<$f>) // '';
}


sub spew {
    my ($file, $bytes) = @_;

    make_path(dirname($file));
    open my $f, '>:raw', $file or die "$file: $!";
    print $f $bytes;
    close $f or die "$file: $!";
}


sub certificate {
    my $dir = "$tmp/pki";

    make_path($dir);
    (-e "$dir/cert.pem"
     || output(qw(openssl req -x509 -newkey rsa:2048 -nodes -days 2
                  -subj /CN=localhost -keyout), "$dir/key.pem",
               '-out', "$dir/cert.pem"))[0] or die 'no certificate';

    return $dir;
}


sub patience { return 120 }


sub until_true (&;$) {
    my ($code, $timeout) = @_;

    my $end = time + ($timeout // patience());

    while (1) {
        my $r = $code->();
        return $r if $r || time > $end;
        sleep 0.01;
    }
}


sub within {
    my ($seconds, $code) = @_;

    my @r;

    for (1 .. 50) {
        my $from = time;

        @r = $code->();
        last if time - $from < $seconds;
    }

    return wantarray ? @r : $r[-1];
}


# Outside of the range of ports that the kernel hands out by itself. Test files
# run side by side, so each takes ports in blocks that are its own for as long as
# it lives, by listening at the first port of a block.

my (@held, @given);

sub free_port {
    my $listen = sub {
        return IO::Socket::INET->new(Listen => 1, LocalAddr => '127.0.0.1',
                                     LocalPort => $_[0], ReuseAddr => 1);
    };

    for (1 .. 1000) {
        if (!@given) {
            my $first = 10240 + 40 * int rand 500;

            push @held, $listen->($first) // next;
            @given = $first + 1 .. $first + 39;
        }

        my $port = shift @given;
        $listen->($port) or next;

        return $port;
    }

    die 'no free port';
}


# Taken, so that it is nobody else's, but not listened at.

sub dead_port {
    my $s;

    socket($s, PF_INET, SOCK_STREAM, 0)
        && bind($s, pack_sockaddr_in(0, INADDR_LOOPBACK)) or die "bind: $!";
    push @held, $s;

    return (unpack_sockaddr_in getsockname $s)[0];
}


1;
