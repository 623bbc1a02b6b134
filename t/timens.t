#!/usr/bin/perl

# docs/guarantees.md: a token lives for its window, whatever clock of the boot the
# containers have that use its file (time namespaces), at once or one after the
# other. The kernel gives the name of a namespace that is gone to the next one.

use lib 't/lib';
use Idempotency;
use Restart;

my $why = no_state();
plan(skip_all => "no file: $why") if $why;
plan(skip_all => 'no time namespaces, or not for this user')
    if $> != 0 || system('unshare -T --boottime 1 true 2>/dev/null') != 0;

my $day = 86400;
my $tmp = File::Temp->newdir('timens-XXXXXX', TMPDIR => 1);
my $stores = 0;
my $file;


sub in_container {
    my ($days) = @_;

    return outliving(under => [ 'unshare', '-T', '--boottime', $days * $day, '--monotonic', $days * $day ],
                     zone => with_state('batched', path => $file), allow => qr/state file/, server => <<'EOC');
    idempotency zone=z;
    idempotency_in_progress reject;
    add_header X-Status $idempotency_status always;
    location / { proxy_pass http://$TEST_NGINX_BACKEND; }
EOC
}

sub order {
    my ($n, $id) = @_;

    return told($n->post("/x?id=$id", key => $id, body => 'b'));
}


# --- one after the other -------------------------------------------------------

for my $case ([ 10, 40, 'a clock that is ahead' ], [ 40, 10, 'a clock that is behind' ]) {
    my ($first, $second, $name) = @$case;

    $file = "$tmp/" . ++$stores . '.db';

    my $n = in_container($first);

    is(order($n, "a$stores"), '200 NEW', "$name: a token");
    $n->down('QUIT');
    $n->stop;

    $n = in_container($second);
    is(order($n, "a$stores"), '200 REPLAYED', '... is known in the next container');
    is(order($n, "b$stores"), '200 NEW', '... and so is that one\'s');
    $n->down('QUIT');
    $n->stop;

    $n = in_container($first);
    is(order($n, "$_$stores"), '200 REPLAYED', "... back in the first: $_") for qw(a b);
    $n->stop;
}


# --- two at once -----------------------------------------------------------------

$file = "$tmp/both.db";

my ($one, $two) = map { in_container($_) } 5, 50;

is(order($one, 'one'), '200 NEW', 'two at once: a token of the first');
ok((until_true { order($two, 'one') eq '200 REPLAYED' }), '... the second knows');
is(order($two, 'two'), '200 NEW', '... and the other way round');
ok((until_true { order($one, 'two') eq '200 REPLAYED' }), '... the first knows');

my $c = $one->start('POST', '/x?id=held&gate=1', key => 'held', body => 'b');

held('held');
is(told($two->post('/x?id=held&gate=1', key => 'held', body => 'b')), '409 IN_PROGRESS',
   '... what one executes is pending for the other');
go('held');
is(told($c->response), '200 NEW', '... and is executed once');

$_->stop for $one, $two;

done_testing();
