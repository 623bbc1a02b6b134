#!/usr/bin/perl

# docs/guarantees.md, "What a power cut loses": with sync=strict a claim is on disk
# before the first byte goes upstream, and the outcome before the client has the end
# of the response. Asked of the system calls of a worker and its threads, in their
# order, as strace sees them.

use lib 't/lib';
use Idempotency;
use Restart;

use File::Temp ();

my $why = no_state();
plan skip_all => $why if $why;

my $dir = File::Temp->newdir('synced-XXXXXX', TMPDIR => 1);
my ($traces, $said) = Idempotency::output('strace', '-o', '/dev/null', 'true');
plan skip_all => 'no strace, or it may trace nothing: ' . ($said =~ /(.*)/)[0]
    if !$traces;

my $calls = join ',', map { "?$_" }
    qw(fdatasync fsync pwrite64 pwritev read readv recvfrom recvmsg write writev
       sendto sendmsg sendfile);


# Those of one process, while something is done: each call that has come to its end
# is a line, at its place, with the number of its thread before it.

sub trace {
    my ($pid, $code) = @_;

    my $name = "$dir/" . $$ . '-' . $pid;

    my $strace = child(sub {
        open STDERR, '>', "$name.err";
        exec 'strace', '-f', '-yy', '-s', '64', '-p', $pid, '-o', $name, '-e',
             "trace=$calls"
            or POSIX::_exit(127);
    });

    my $attached = until_true {
        my @tasks = glob "/proc/$pid/task/*/status";
        @tasks && @tasks == grep { slurp($_) =~ /^TracerPid:\t$strace$/m } @tasks
            or waitpid($strace, POSIX::WNOHANG()) ? -1 : 0;
    };

    if ($attached ne 1) {
        my $error = slurp("$name.err");
        plan skip_all => 'no process may be traced: ' . ($error =~ /(.*)/)[0];
    }

    my @got = $code->();

    kill INT => $strace;
    waitpid $strace, 0;

    my (@lines, %begun);

    for (split /\n/, slurp($name)) {
        my ($task, $text) = /^(\d+) +(.*)/ or next;

        if ($text =~ s/ <unfinished \.\.\.>$//) {
            $begun{$task} = $text;
            push @lines, "begun $text";
        } elsif ($text =~ s/^<\.\.\. \w+ resumed>//) {
            push @lines, (delete $begun{$task} // '') . $text;
        } else {
            push @lines, "begun $text", $text;
        }
    }

    return (\@lines, @got);
}


# The number of the first line behind this one that is like that; 0: none is.

sub behind {
    my ($lines, $from, $like) = @_;

    for my $i ($from .. $#$lines) {
        return $i + 1 if $lines->[$i] =~ $like;
    }

    return 0;
}


# Whether the log was written in a part of the lines, and was synced then in it

sub synced {
    my ($lines, $from, $to) = @_;

    my $last = 0;

    for my $i ($from .. $to - 1) {
        $last = $i if $lines->[$i] =~ m{^pwrite(?:64|v)\(\d+<[^>]*/z\.db-wal>};
    }

    return 0 if !$last;

    my $log = qr{\(\d+<[^>]*/z\.db-wal>};
    my $begun = behind($lines, $last, qr{^begun f(?:data)?sync$log});
    my $ended = $begun && behind($lines, $begun, qr{^f(?:data)?sync$log.*= 0$});

    return $ended && $ended <= $to ? 1 : 0;
}


for my $mode (qw(strict batched)) {
    my $n = outliving(workers => 1, env => {}, zone => with_state($mode), server => <<'EOC');
        location / {
            idempotency zone=z;
            proxy_pass http://$TEST_NGINX_BACKEND;
        }
EOC

    # a log that is begun is synced in any mode

    is($n->post('/?id=0', key => "$mode-0")->{status}, 200, "$mode: the first one");
    until_true { -s $n->root . '/z.db-wal' };

    my $wanted = $mode eq 'strict' ? 1 : 0;
    my $name = $wanted ? 'on disk' : 'not on disk yet';
    my ($port, $backend) = ($n->port, backend('http'));

    my ($lines, @got) = trace(($n->workers)[0], sub {
        map { $n->post("/?id=$mode-$_&size=3000", key => "$mode-$_") } 1 .. 5;
    });

    # TCP:[ours->theirs]

    my $takes = '(?:read|readv|recvfrom|recvmsg)';
    my $gives = 'begun (?:write|writev|sendto|sendmsg)';
    my $client = qr/\(\d+<TCP:\[127\.0\.0\.1:$port->/;
    my $upstream = qr/\(\d+<TCP:\[[^\]]*->127\.0\.0\.1:$backend\]/;

    my $from = 0;

    for my $i (1 .. 5) {
        is($got[$i - 1]{status}, 200, "$mode $i: executed");

        my $asked = behind($lines, $from, qr{^$takes$client.*POST /\?id=$mode-$i&});
        my $sent = $asked && behind($lines, $asked, qr{^$gives$upstream});
        my $told = $sent && behind($lines, $sent, qr{^$takes$upstream.*HTTP/1\.});
        my $ended = $told && behind($lines, $told, qr{^$gives$client});

        # the last of those for this client

        while (my $next = behind($lines, $ended, qr{^(?:$gives$client|$takes$client.*POST )})) {
            last if $lines->[$next - 1] !~ /^begun/;
            $ended = $next;
        }

        ok($asked && $sent && $told && $ended, "$mode $i: seen on its way");
        is(synced($lines, $asked, $sent - 1), $wanted,
           "$mode $i: the claim is $name before a byte goes upstream");
        is(synced($lines, $told, $ended - 1), $wanted,
           "$mode $i: the outcome is $name before the end of the response");

        $from = $ended;
    }

    $n->stop;
}

done_testing();
