package RedisCaller;

# An nginx in which a request calls a script of a Redis, through the interface that
# a store uses (t/redis/caller.c).
#
#       with('server 127.0.0.1:6379; timeout 1s;', %o_of_nginx);   or more blocks:
#       with({ a => '...', b => '...' });          the location of b is /b/
#            in_http: more text there
#       call(KEY, script => 'return 1', arg => [...], n =>, lane =>, msec =>,
#            durable => 1, until => 1, at => 'b')   what became of it, a line each
#       is_call(call(...), 'OK', 0, TEXT or qr//, 'name')   its error, whether it
#            may have been executed, and what else the lines say
#       state(), up(), watching(KEY, n =>, msec =>): a connection, ->response later
#       uri(KEY, %as_call), caller_nginx(): as nginx() made it
#       gone(sub { ... }): QUIT, and what follows; does the worker exit?
#       descriptors(), memory(): of the worker

use strict;
use warnings;

use Exporter 'import';
use Idempotency;
use Redis;
use Test::More;

our @EXPORT = qw(with call is_call state up watching uri caller_nginx gone descriptors memory);

my %error = (OK => 0, CONNECT => 1, TIMEOUT => 2, PROTOCOL => 3, DENIED => 4, FULL => 5,
             AWAY => 6, UNACKED => 7, REFUSED => 8, FAULT => 9);

my $n;


sub caller_nginx { return $n }


sub with {
    my ($blocks, %o) = @_;

    $n->stop if $n;
    $blocks = { r => $blocks } unless ref $blocks;

    return $n = nginx(
        modules_after => [Redis->caller], zone => 0, log_level => 'notice',
        http => (delete $o{in_http} // '') . join('', map "idempotency_redis $_ { $blocks->{$_} }\n", sort keys %$blocks),
        server => join('', map "location /$_/ { redis_caller $_; }\n", sort keys %$blocks), %o);
}


sub quoted { return join '', map { /[\w.~-]/ ? $_ : sprintf '%%%02X', ord } split //, $_[0] }


sub uri {
    my ($key, %o) = @_;

    my $at = delete $o{at} // 'r';
    my $script = delete $o{script} // 'return';

    return "/$at/?script=" . quoted($script) . (defined $key ? '&key=' . quoted($key) : '')
           . join '', map { ref $o{$_} ? map "&arg=" . quoted($_), @{$o{$_}} : "&$_=$o{$_}" }
                      sort keys %o;
}


sub call { return $n->get(uri(@_))->{body} // '' }


sub is_call {
    my ($said, $error, $maybe, $rest, $name) = @_;

    local $Test::Builder::Level = $Test::Builder::Level + 1;

    my $like = ref $rest ? $rest : qr/\Q$rest\E/;

    return like($said, qr/^error=$error{$error} maybe=$maybe (?=why=).*$like/s, $name);
}


sub state { return $n->get('/' . ($_[0] // 'r') . '/?state=1')->{body} // '' }

sub up { return &state =~ /^up 1 time [1-9]/ }


sub watching {
    my ($key, %o) = @_;

    my $at = delete $o{at} // 'r';

    return $n->start('GET', "/$at/?watch=" . quoted($key) . join '', map "&$_=$o{$_}", keys %o);
}


sub gone {
    my ($then) = @_;

    my ($pid) = $n->workers;

    $n->signal('QUIT');
    $then->();

    return until_true { !kill 0, $pid };
}


sub worker { return ($n->workers)[0] }
sub descriptors { return scalar(() = glob('/proc/' . worker() . '/fd/*')) }

# Of the worker; nothing to tell with the address sanitizer, which keeps what is
# freed.

sub memory {
    return 0 if slurp(module_path() || $ENV{TEST_NGINX_BINARY}) =~ /__asan_init/;
    return slurp('/proc/' . worker() . '/status') =~ /^VmRSS:\s+(\d+)/m ? $1 : die;
}


1;
