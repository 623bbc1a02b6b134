#!/usr/bin/perl

# kill -9 of all of nginx while its disk hangs, wholly or in its syncs, is full or
# gone: nothing is executed twice by that, in either mode; what was acknowledged
# before is replayed, and new keys are served right after. Without a file, the
# control, all of it is executed again.

use lib 't/lib';
use Disk;
use Idempotency;
use List::Util qw(max);
use Restart;
use Stress;

if (my $why = no_state()) {
    plan(skip_all => "no file: $why");
}

my $disk = Disk->new('/z.db');
my $n;

sub start_nginx {
    my ($mode) = @_;

    $n->stop if $n;

    $n = outliving(workers => 2, env => $disk->env, main => $disk->main, allow => qr/z\.db|exited on signal/,
                   zone => with_state($mode), http => crowd(<<'EOC'));
    idempotency zone=z;
    proxy_read_timeout 10m;
    location / { proxy_pass http://$TEST_NGINX_BACKEND; }
    location /free { idempotency off; proxy_pass http://$TEST_NGINX_BACKEND; }
EOC
}


my $names = 0;

sub name { return 'n' . ++$names . '-' . shift }

sub order {
    my ($id) = @_;

    return $n->post("/x?id=$id", key => $id, body => 'b');
}


# What is told is told in its order: what came before this is in the file.

sub settled {
    return if !$_[0];

    for (1, 2) {
        my $id = name('settled');

        order($id);
        until_true { grep { index(slurp($_), "id=$id") >= 0 } glob $n->root . '/z.db*' }
            or die "nothing is written\n";
    }
}


sub test {
    my ($mode, $name, %ill) = @_;

    my @done = map name('done'), 1 .. 5;

    is(join(' ', map { told(order($_)) } @done), join(' ', ('200 NEW') x 5),
       "$mode, $name: before that new ones are executed");

    my (undef, $uri, @o) = owner($n, my $held = name('held'));

    settled($mode);
    $disk->set(%ill);

    # whoever comes then is taken or refused, and refused before he is executed

    my @ids = map name('ill'), 1 .. 8;
    my @c = map { ask($n->connect, 'POST', "/x?id=$_", key => $_, body => 'b') } @ids;
    my $end = time + 20;
    my %told = map { $ids[$_] => told($c[$_]->response(POST => max(0.1, $end - time))) } 0 .. $#ids;

    is(join(' ', grep { $told{$_} !~ /^(?:200 NEW|503 UNAVAILABLE)$/ } @ids), '',
       '... while it is ill they are executed, or refused');
    is(join(' ', grep { executions($_) != ($told{$_} =~ /^200/ ? 1 : 0) } @ids), '',
       '... but not both');

    go($held);
    $n->down('KILL');
    $disk->well;
    $n->up;

    is(told(order(name('new'))), '200 NEW', "$mode, $name, kill -9: new keys are served");

    my @again = map { "$_ " . told(order($_)) } @done;
    my @late = map { "$_ " . told(order($_)) } grep { $told{$_} =~ /^200/ } @ids;

    push @late, "$held " . told($n->post($uri, @o)) if $mode;

    my $twice = grep { executions($_) > 1 } @done, $held, @ids;

    return cmp_ok($twice, '>=', @done, '... and without a file all is executed again') if !$mode;

    is(join(' ', grep !/ 200 REPLAYED$/, @again), '', '... what was acknowledged is replayed');
    is(join(' ', grep !/ (?:200 REPLAYED|409 IN_DOUBT)$/, @late), '',
       '... what was executed then is replayed, or in doubt');
    is($twice, 0, '... nothing is executed twice');
}


my %ills = (
    'a disk that hangs' => { all => 'hang' },
    'that hangs in syncs' => { sync => 'hang' },
    'is full' => { write => 'full' },
    'fails' => { write => 'fail', sync => 'fail' },
    'is gone' => { open => 'gone', read => 'fail', write => 'fail' },
);

for my $mode (qw(strict batched)) {
    start_nginx($mode);
    test($mode, $_, %{$ills{$_}}) for sort keys %ills;
}

start_nginx('');
test('', 'the control', sync => 'hang');

$n->stop;

done_testing();
