package Commands;

# For tests that run commands and write files:
#
#    run(COMMAND, …)        its exit status (or "signal N") and all that it said
#    slurp(FILE)            '' if there is none
#    spew(FILE, TEXT)
#    until_true { … }       waits until it is; false if it never comes true
#    free_port              one that no other test file is given

use strict;
use warnings;

use Exporter qw(import);
use Idempotency ();
use POSIX ();

our @EXPORT = qw(run slurp spew until_true free_port);


sub run {
    my @command = @_;
    my $pid = open(my $out, '-|') // die "fork: $!";

    if ($pid == 0) {
        open STDIN, '<', '/dev/null';
        open STDERR, '>&', \*STDOUT;
        exec { $command[0] } @command or POSIX::_exit(127);
    }

    my $said = do { local $/; readline $out };
    close $out;

    return ($? & 127 ? "signal $?" : $? >> 8, $said // '');
}


BEGIN {
    no strict 'refs';
    *$_ = \&{"Idempotency::$_"} for qw(slurp spew until_true free_port);
}


1;
