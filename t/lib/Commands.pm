package Commands;

# For tests that run commands and write files:
#
#    run(COMMAND, …)        its exit status (or "signal N") and all that it said
#    slurp(FILE)            '' if there is none
#    spew(FILE, TEXT)
#    until_true { … }       waits until it is; 0 if it never comes true

use strict;
use warnings;

use Exporter qw(import);
use POSIX ();
use Time::HiRes qw(sleep time);

our @EXPORT = qw(run slurp spew until_true);


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


sub slurp {
    my ($name) = @_;

    open my $file, '<:raw', $name or return '';
    local $/;
    return scalar <$file> // '';
}


sub spew {
    my ($name, $text) = @_;

    open my $file, '>', $name or die "$name: $!\n";
    print $file $text;
    close $file or die "$name: $!\n";
}


sub until_true (&) {
    my ($what) = @_;
    my $deadline = time + 180;

    until ($what->()) {
        return 0 if time > $deadline;
        sleep 0.05;
    }

    return 1;
}


1;
