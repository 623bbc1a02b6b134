#!/usr/bin/perl

# What reads the words of others, against any bytes: each target of fuzz/ with its
# corpus and some thousand inputs made of it, the same ones each time, under the
# address and undefined behaviour sanitizers. fuzz/run goes on for as long as it is
# told.

use strict;
use warnings;

use File::Temp qw(tempdir);
use lib 't/lib';
use Test::More;

use Programs;

my $dir = tempdir(CLEANUP => 1);
my $cc = $ENV{CC} // 'cc';

open my $f, '>', "$dir/try.c" or die "$dir/try.c: $!";
print $f "int main(void) { return 0; }\n";
close $f;

plan skip_all => "$cc has no sanitizers"
    if system("$cc -fsanitize=address,undefined -no-pie -o $dir/try $dir/try.c >/dev/null 2>&1"
              . " && $dir/try >/dev/null 2>&1");

run_programs('fuzz', '--fixed', 3000);
